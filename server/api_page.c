/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /: the page of server/page/index.html, which the assembler puts into the program as it is. */
#include "server/internal.h"

__asm__(".pushsection .rodata\n"
        "server__page: .incbin \"server/page/index.html\"\n"
        "server__page_end: .byte 0\n"
        ".popsection\n");
extern const char server__page[], server__page_end[];

void api_page(struct exchange *x) {
    reply_text(x, 200, "text/html; charset=utf-8", server__page, (size_t)(server__page_end - server__page));
}
