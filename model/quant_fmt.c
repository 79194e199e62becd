/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of weight formats. Three kinds of rows: formats this build computes with, formats it only knows the
 * size of (so that a file holding them can still be inspected and the error can name them), and ids that GGUF
 * has withdrawn (a name, no size). */
#include "model/quant_fmt.h"

#include "model/gguf_internal.h"

struct format {
    struct dtype_info info;
    bool readable;
};

static const struct format FORMATS[] = {
    [DTYPE_F32] = { { "F32", 1, 4 }, true },
    [DTYPE_F16] = { { "F16", 1, 2 }, true },
    [DTYPE_Q4_0] = { { "Q4_0", 32, sizeof(struct block_q4_0) }, true },
    [DTYPE_Q4_1] = { { "Q4_1", 32, sizeof(struct block_q4_1) }, true },
    [4] = { { "Q4_2", 0, 0 }, false },
    [5] = { { "Q4_3", 0, 0 }, false },
    [DTYPE_Q5_0] = { { "Q5_0", 32, sizeof(struct block_q5_0) }, true },
    [DTYPE_Q5_1] = { { "Q5_1", 32, sizeof(struct block_q5_1) }, true },
    [DTYPE_Q8_0] = { { "Q8_0", 32, sizeof(struct block_q8_0) }, true },
    [9] = { { "Q8_1", 32, 36 }, false },
    [10] = { { "Q2_K", 256, 84 }, false },
    [11] = { { "Q3_K", 256, 110 }, false },
    [DTYPE_Q4_K] = { { "Q4_K", 256, sizeof(struct block_q4_k) }, true },
    [DTYPE_Q5_K] = { { "Q5_K", 256, sizeof(struct block_q5_k) }, true },
    [DTYPE_Q6_K] = { { "Q6_K", 256, sizeof(struct block_q6_k) }, true },
    [15] = { { "Q8_K", 256, 292 }, false },
    [16] = { { "IQ2_XXS", 256, 66 }, false },
    [17] = { { "IQ2_XS", 256, 74 }, false },
    [18] = { { "IQ3_XXS", 256, 98 }, false },
    [19] = { { "IQ1_S", 256, 50 }, false },
    [DTYPE_IQ4_NL] = { { "IQ4_NL", 32, sizeof(struct block_iq4_nl) }, true },
    [21] = { { "IQ3_S", 256, 110 }, false },
    [22] = { { "IQ2_S", 256, 82 }, false },
    [DTYPE_IQ4_XS] = { { "IQ4_XS", 256, sizeof(struct block_iq4_xs) }, true },
    [24] = { { "I8", 1, 1 }, false },
    [25] = { { "I16", 1, 2 }, false },
    [26] = { { "I32", 1, 4 }, false },
    [27] = { { "I64", 1, 8 }, false },
    [28] = { { "F64", 1, 8 }, false },
    [29] = { { "IQ1_M", 256, 56 }, false },
    [DTYPE_BF16] = { { "BF16", 1, 2 }, true },
    [31] = { { "Q4_0_4_4", 0, 0 }, false },
    [32] = { { "Q4_0_4_8", 0, 0 }, false },
    [33] = { { "Q4_0_8_8", 0, 0 }, false },
    [34] = { { "TQ1_0", 256, 54 }, false },
    [35] = { { "TQ2_0", 256, 66 }, false },
    [36] = { { "IQ4_NL_4_4", 0, 0 }, false },
    [37] = { { "IQ4_NL_4_8", 0, 0 }, false },
    [38] = { { "IQ4_NL_8_8", 0, 0 }, false },
    [DTYPE_MXFP4] = { { "MXFP4", 32, sizeof(struct block_mxfp4) }, true },
    [40] = { { "NVFP4", 64, 36 }, false },
    [41] = { { "Q1_0", 128, 18 }, false },
};

const struct dtype_info *dtype__known(uint32_t dtype) {
    if (dtype >= sizeof FORMATS / sizeof FORMATS[0] || !FORMATS[dtype].info.name) return NULL;
    return &FORMATS[dtype].info;
}

const struct dtype_info *dtype_info(uint32_t dtype) {
    const struct dtype_info *t = dtype__known(dtype);
    return t && FORMATS[dtype].readable ? t : NULL;
}
