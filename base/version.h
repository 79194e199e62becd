/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOED_BASE_VERSION_H
#define MOED_BASE_VERSION_H

#define MOED_VERSION "0.1.0"

#endif
