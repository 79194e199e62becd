/* SPDX-License-Identifier: Apache-2.0
 *
 * GET / and GET /openapi.json: files of server/page, which the assembler puts into the program as they are. */
#include "server/internal.h"

__asm__(".pushsection .rodata\n"
        "server__page: .incbin \"server/page/index.html\"\n"
        "server__page_end: .byte 0\n"
        ".globl server__openapi, server__openapi_end\n" /* a test reads it */
        "server__openapi: .incbin \"server/page/openapi.json\"\n"
        "server__openapi_end: .byte 0\n"
        ".popsection\n");
extern const char server__page[], server__page_end[], server__openapi[], server__openapi_end[];

void api_page(struct exchange *x) {
    reply_text(x, 200, "text/html; charset=utf-8", server__page, (size_t)(server__page_end - server__page));
}

void api_openapi(struct exchange *x) {
    reply_json(x, 200, server__openapi, (size_t)(server__openapi_end - server__openapi), NULL);
}
