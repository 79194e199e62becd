/* SPDX-License-Identifier: Apache-2.0
 *
 * The open files behind disk_threads.c and disk_uring.c. Immutable once open: any thread. */
#ifndef MOED_OFFLOAD_DISK_FILE_H
#define MOED_OFFLOAD_DISK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct disk_file { int fd; bool direct; };

int disk_files_open(struct disk_file **out, const char *const *paths, uint32_t n, struct err *e); /* returns owned, free with disk_files_close */
void disk_files_close(struct disk_file *files, uint32_t n);
void disk_file_drop(const struct disk_file *f, uint64_t offset, size_t n_bytes); /* from the page cache, if it went there */

#endif
