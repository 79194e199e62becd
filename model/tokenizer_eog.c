/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens end a generation. The file's eos, eot and eom ids say so; chat models often end a turn with
 * another token that no key names, so well-known names count too. A name that could also be plain text (HTML's
 * "</s>") counts only when the file marks the token as special. */
#include <string.h>

#include "model/tokenizer_internal.h"

static const struct eog_name {
    const char *name;
    bool any_type; /* files exist that mark it as a normal token */
} eog_names[] = {
    {"<|eot_id|>", true},            /* Llama 3 */
    {"<|eom_id|>", true},            /* Llama 3 tools */
    {"<|eot|>", true},               /* Llama 4 */
    {"<|eom|>", true},               /* Llama 4 */
    {"<|im_end|>", true},            /* ChatML: Qwen, SmolLM, ... */
    {"<|end|>", true},               /* Phi */
    {"<|return|>", true},            /* gpt-oss */
    {"<|call|>", true},              /* gpt-oss */
    {"<|flush|>", true},             /* Solar Open */
    {"<|calls|>", true},             /* Solar Open */
    {"<|endoftext|>", true},         /* GPT-2 and many after it */
    {"<|end_of_text|>", true},       /* Granite */
    {"<end_of_turn>", true},         /* Gemma */
    {"<end_of_utterance>", true},    /* SmolVLM */
    {"<｜end▁of▁sentence｜>", true}, /* DeepSeek */
    {"<|fim_pad|>", true},           /* Qwen: the end of an infill, as are the next two */
    {"<|repo_name|>", true},
    {"<|file_sep|>", true},
    {"<fim_pad>", false},            /* StarCoder, Granite, SmolLM, ...: the same in their spelling */
    {"<fim-pad>", false},
    {"<PAD>", false},
    {"[PAD]", false},
    {"<reponame>", false},
    {"<fim-repo>", false},
    {"<REPO>", false},
    {"[EOT]", false},                /* Kimi */
    {"[EOS]", false},                /* Kimi */
    {"[e~[", false},                 /* MiniMax */
    {"<EOT>", false},
    {"<eos>", false},
    {"</s>", false},
};

static void mark_id(struct tokenizer *t, int32_t id)
{
    if (id >= 0)
        t->flags[id] |= TOKF_EOG;
}

/* A control token leaves the text hash's answers: tokenizer__text_find skips what has lost TOKF_TEXT. */
static void mark_control(struct tokenizer *t, int32_t id)
{
    t->flags[id] = (uint8_t)((t->flags[id] & ~(TOKF_TEXT | TOKF_USER)) | TOKF_CONTROL);
}

static bool piece_is(const struct tokenizer *t, int32_t id, const char *name)
{
    size_t len = 0;
    const char *p = tokenizer__piece(t, id, &len);
    return len == strlen(name) && memcmp(p, name, len) == 0;
}

static void mark_key(struct tokenizer *t, const struct gguf *g, const char *key)
{
    uint32_t id = 0;
    if (gguf_find(g, key) >= 0 && gguf_get_u32(g, key, &id, NULL) == 0 && id < (uint32_t)t->n_vocab)
        t->flags[id] |= TOKF_EOG;
}

/* Names share few first bytes and are short, so most of the vocabulary is passed over by two comparisons. */
static const struct eog_name *name_of(const struct tokenizer *t, int32_t id)
{
    size_t len = 0;
    const char *p = tokenizer__piece(t, id, &len);
    if (len < 4 || len > 32 || (p[0] != '<' && p[0] != '['))
        return NULL;
    for (size_t i = 0; i < sizeof(eog_names) / sizeof(eog_names[0]); i++)
        if (piece_is(t, id, eog_names[i].name))
            return &eog_names[i];
    return NULL;
}

void tokenizer__eog_mark(struct tokenizer *t, const struct gguf *g)
{
    int32_t end = -1;
    bool has_return = false, has_call = false;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const struct eog_name *name = name_of(t, id);
        if (!name || (!name->any_type && !(t->flags[id] & (TOKF_CONTROL | TOKF_USER))))
            continue;
        mark_control(t, id);
        mark_id(t, id);
        if (strcmp(name->name, "<|end|>") == 0)
            end = id;
        has_return |= strcmp(name->name, "<|return|>") == 0 || strcmp(name->name, "<|flush|>") == 0;
        has_call |= strcmp(name->name, "<|call|>") == 0 || strcmp(name->name, "<|calls|>") == 0;
    }
    /* gpt-oss, Solar: <|end|> only closes a message; the turn goes on until one of the others. */
    if (end >= 0 && has_return && has_call)
        t->flags[end] &= (uint8_t)~TOKF_EOG;
    mark_id(t, t->eos);
    mark_id(t, t->eot);
    mark_id(t, t->eom);
    mark_key(t, g, "tokenizer.ggml.fim_pad_token_id");
    mark_key(t, g, "tokenizer.ggml.fim_rep_token_id");
    mark_key(t, g, "tokenizer.ggml.fim_sep_token_id");
}
