# SPDX-License-Identifier: Apache-2.0
# moed: see README.md. `make help` lists the targets.
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
SHELL := /bin/bash

# SAN=address,undefined or SAN=thread builds an instrumented variant beside the release one.
SAN     ?=
comma   := ,
VARIANT := $(if $(SAN),$(subst $(comma),-,$(SAN)),release)
BUILD   ?= build
B       := $(BUILD)/$(VARIANT)
CC      ?= gcc
ifeq ($(origin CC),default)
CC      := gcc
endif
PYTHON  ?= python3

WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS  ?= -O2 -g
CSTD    := -std=gnu11 -D_GNU_SOURCE -I. -MMD -MP -fno-omit-frame-pointer -ffp-contract=off
SANF    := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all,)
LDLIBS  := -lm -lpthread

PKG     := $(shell pkg-config --cflags libuv libcjson libpcre2-8 2>/dev/null)
# llhttp: a system library where the distribution has one, else the C sources that Debian 12's node-llhttp ships.
LLHTTP_SRC_DIR := /usr/share/llhttp
ifneq ($(wildcard /usr/include/llhttp.h),)
LLHTTP_LIB := -lllhttp
else
LLHTTP_INC := -I/usr/share/include/llhttp
LLHTTP_OBJ := $(patsubst %,$(B)/llhttp/%.o,api http llhttp)
endif

FOLDERS := base config model kernels engine scheduler server
# What each folder may link, in link order: the DAG of docs/ARCHITECTURE.md.
DEPS_base      := base
DEPS_config    := config base
DEPS_model     := model base
DEPS_kernels   := kernels model base
DEPS_engine    := engine kernels model base
DEPS_scheduler := scheduler engine kernels model base
DEPS_server    := server scheduler engine kernels model config base
LIBS_model     := -lpcre2-8
LIBS_kernels   := -lpcre2-8
LIBS_engine    := -lpcre2-8
LIBS_scheduler := -lpcre2-8
LIBS_server    := -lpcre2-8 -luv -lcjson $(LLHTTP_LIB)

srcs     = $(filter-out server/main.c,$(wildcard $(1)/*.c $(1)/*/*.c))
objs     = $(patsubst %.c,$(B)/%.o,$(call srcs,$(1)))
archives = $(patsubst %,$(B)/lib%.a,$(DEPS_$(1)))

TEST_SRC := $(wildcard tests/unit/*.c)
TESTS    := $(patsubst tests/unit/%.c,$(B)/tests/%,$(TEST_SRC))

.PHONY: all
all: $(B)/moed

$(B)/moed: $(B)/server/main.o $(call archives,server) $(LLHTTP_OBJ)
	$(CC) $(SANF) -o $@ $^ $(LIBS_server) $(LDLIBS)

define folder_rules
$(B)/lib$(1).a: $(call objs,$(1))
	@rm -f $$@ && ar rcs $$@ $$^
$(B)/tests/$(1)_%: $(B)/tests/unit/$(1)_%.o $(call archives,$(1)) $(if $(filter server,$(1)),$(LLHTTP_OBJ))
	@mkdir -p $$(@D)
	$(CC) $(SANF) -o $$@ $$^ $(LIBS_$(1)) $(LDLIBS)
$(B)/helpers/$(1)_%: $(B)/tests/helpers/$(1)_%.o $(call archives,$(1)) $(if $(filter server,$(1)),$(LLHTTP_OBJ))
	@mkdir -p $$(@D)
	$(CC) $(SANF) -o $$@ $$^ $(LIBS_$(1)) $(LDLIBS)
endef
$(foreach f,$(FOLDERS),$(eval $(call folder_rules,$(f))))

# One translation unit per instruction set, chosen at run time by cpuid.
ISA_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512 := -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA = $(if $(filter %_avx512.c,$<),$(ISA_avx512),$(if $(filter %_avx2.c,$<),$(ISA_avx2)))

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(WARN) $(CFLAGS) $(if $(filter kernels/%,$<),-O3) $(ISA) $(SANF) $(PKG) $(LLHTTP_INC) -c -o $@ $<

$(B)/llhttp/%.o: $(LLHTTP_SRC_DIR)/%.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g $(SANF) -DLLHTTP_STRICT_MODE=1 $(LLHTTP_INC) -c -o $@ $<

.PHONY: unit
unit: $(TESTS)

.PHONY: clean
clean:
	rm -rf $(BUILD)

.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
