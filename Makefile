# SPDX-License-Identifier: Apache-2.0
# moed: see README.md. `make help` lists the targets.
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
SHELL := /bin/bash
# V=1 shows the commands.
Q := $(if $(V),,@)

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
JOBS    ?= $(shell nproc)

WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS  ?= -O2 -g
CSTD    := -std=gnu11 -D_GNU_SOURCE -I. -MMD -MP -fno-omit-frame-pointer -ffp-contract=off
# gcc's instrumentation makes it see uninitialised variables where there are none.
SANF    := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized),)
LDLIBS  := -lm -lpthread

PKG     := $(shell pkg-config --cflags libuv libcjson libpcre2-8 libssl 2>/dev/null)
# llhttp: a system library where the distribution has one, else the C sources that Debian 12's node-llhttp ships.
LLHTTP_SRC_DIR := /usr/share/llhttp
ifneq ($(wildcard /usr/include/llhttp.h),)
LLHTTP_LIB := -lllhttp
else
LLHTTP_INC := -I/usr/share/include/llhttp
LLHTTP_OBJ := $(patsubst %,$(B)/llhttp/%.o,api http llhttp)
endif

FOLDERS := base config model chat kernels offload engine grammar scheduler server
# What each folder may link, in link order: the DAG of docs/ARCHITECTURE.md.
DEPS_base      := base
DEPS_config    := config base
DEPS_model     := model base
DEPS_chat      := chat model base
DEPS_kernels   := kernels model base
DEPS_offload   := offload kernels model base
DEPS_engine    := engine offload kernels model base
DEPS_grammar   := grammar base
DEPS_scheduler := scheduler grammar engine offload kernels model base
DEPS_server    := server chat scheduler grammar engine offload kernels model config base
LIBS_model     := -lpcre2-8 -lxxhash
LIBS_chat      := $(LIBS_model)
LIBS_kernels   := $(LIBS_model)
LIBS_offload   := $(LIBS_model) -luring
LIBS_engine    := $(LIBS_offload)
LIBS_scheduler := $(LIBS_offload)
LIBS_server    := $(LIBS_offload) -luv -lcjson -lssl -lcrypto $(LLHTTP_LIB)

# Kernels of other architectures than the compiler's target stay out.
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ALIEN := $(if $(filter x86_64,$(ARCH)),,$(wildcard kernels/cpu/*_avx*.c)) $(if $(filter aarch64,$(ARCH)),,$(wildcard kernels/cpu/*_neon.c))
srcs     = $(filter-out server/main.c $(ALIEN),$(or $(SRCS_$(1)),$(wildcard $(1)/*.c $(1)/*/*.c)))
objs     = $(patsubst %.c,$(B)/%.o,$(call srcs,$(1)))
archives = $(patsubst %,$(B)/lib%.a,$(DEPS_$(1)))

TEST_SRC := $(wildcard tests/unit/*.c)
TESTS    := $(patsubst tests/unit/%.c,$(B)/tests/%,$(TEST_SRC))

.PHONY: all
all: $(B)/moed

$(B)/moed: $(B)/server/main.o $(call archives,server) $(LLHTTP_OBJ)
	@echo "LINK $@"
	$(Q)$(CC) $(SANF) -o $@ $^ $(LIBS_server) $(LDLIBS)

define folder_rules
$(B)/lib$(1).a: $(call objs,$(1))
	@rm -f $$@ && ar rcs $$@ $$^
$(B)/tests/$(1)_%: $(B)/tests/unit/$(1)_%.o $(call archives,$(1)) $(if $(filter server,$(1)),$(LLHTTP_OBJ))
	@mkdir -p $$(@D)
	$(Q)$(CC) $(SANF) -o $$@ $$^ $(LIBS_$(1)) $(LDLIBS)
$(B)/helpers/$(1)_%: $(B)/tests/helpers/$(1)_%.o $(call archives,$(1)) $(if $(filter server,$(1)),$(LLHTTP_OBJ))
	@mkdir -p $$(@D)
	$(Q)$(CC) $(SANF) -o $$@ $$^ $(LIBS_$(1)) $(LDLIBS)
endef
$(foreach f,$(FOLDERS),$(eval $(call folder_rules,$(f))))

# One translation unit per instruction set, <family>_<set>.c, chosen at run time by what the CPU has.
ISA_avx2    := -mavx2 -mfma -mf16c -mbmi2
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512  := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_neon    := -march=armv8.2-a+dotprod
isa = $(if $(filter kernels/cpu/%,$(1)),$(ISA_$(lastword $(subst _, ,$(basename $(1))))))

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "CC   $<"
	$(Q)$(CC) $(CSTD) $(WARN) $(CFLAGS) $(if $(filter kernels/%,$<),$(if $(SAN),,-O3)) $(call isa,$<) $(SANF) $(PKG) $(LLHTTP_INC) -c -o $@ $<

$(B)/server/api_page.o: server/page/index.html server/page/openapi.json

$(B)/llhttp/%.o: $(LLHTTP_SRC_DIR)/%.c
	@mkdir -p $(@D)
	@echo "CC   $<"
	$(Q)$(CC) -std=gnu11 -O2 -g $(SANF) -DLLHTTP_STRICT_MODE=1 $(LLHTTP_INC) -c -o $@ $<

.PHONY: help
help:
	@echo "make run [MODEL=f.gguf]   set up, build, get the demo model, serve on 127.0.0.1:8080"
	@echo "make test                 set up, then every test; ends with 'N passed, N failed, N skipped'"
	@echo "make check                build and run the tests without set-up; TESTS_ONLY='a b' picks some"
	@echo "make cuda                 the device kernels, compiled by nvcc for every card, and what ptxas says of them"
	@echo "make check-arm            the kernel tests on aarch64, cross-compiled and emulated"
	@echo "make lint                 house rules, second compiler"
	@echo "make fuzz                 fuzz targets for FUZZ_SECONDS (60) each"
	@echo "make bench                build the bench programs in $(B)/bench"
	@echo "make install PREFIX=/usr/local"
	@echo "SAN=address,undefined or SAN=thread: instrumented variant of any target"

# Set-up may install headers, so the build is a second make that sees them.
.PHONY: run
PORT ?= 8080
run:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@$(if $(MODEL),:,$(PYTHON) tools/make_demo.py)
	@$(MAKE) --no-print-directory run-hint
	@exec $(B)/moed serve --host 127.0.0.1 --port $(PORT) --model $(or $(MODEL),models/demo-moe.gguf)

# Apart, so that a test can try what it prints.
.PHONY: run-hint
run-hint:
	@echo
	@echo "Try, from another terminal:"
	@echo "  curl -s http://127.0.0.1:$(PORT)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0}'"
	@echo
	@echo "or, with the official client (pip install openai):"
	@echo "  python3 -c 'from openai import OpenAI; c = OpenAI(base_url=\"http://127.0.0.1:$(PORT)/v1\", api_key=\"-\");" \
	      "m = [{\"role\": \"user\", \"content\": \"Tell me a joke.\"}];" \
	      "print(c.chat.completions.create(model=\"\", messages=m).choices[0].message.content)'"
	@echo

.venv/done: tests/requirements.txt
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

.PHONY: test
test:
	@tools/setup.sh test
	@$(PYTHON) tools/make_demo.py
	@$(MAKE) --no-print-directory .venv/done
	@$(MAKE) --no-print-directory -j$(JOBS) check-build
	@$(MAKE) --no-print-directory check

include cuda.mk

HELPERS := $(patsubst tests/helpers/%.c,$(B)/helpers/%,$(wildcard tests/helpers/*.c))
.PHONY: check check-build
check-build: $(B)/moed $(TESTS) $(CUDA_TESTS) $(HELPERS)
check: check-build
	@tests/run.sh $(B) $(TESTS_ONLY)

# The kernels on aarch64: cross-compiled, run by an emulator; SAN=address,undefined works too. Of model/ they need one
# file, of the libraries none.
ARM_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/kernels_*.c))
.PHONY: check-arm
check-arm:
	@tools/setup.sh arm
	@$(MAKE) --no-print-directory -j$(JOBS) check-arm-run CC=aarch64-linux-gnu-gcc VARIANT=aarch64-$(VARIANT) \
	   SRCS_model=model/quant_fmt.c LIBS_kernels= PKG=
.PHONY: check-arm-run
check-arm-run: $(patsubst %,$(B)/tests/%,$(ARM_TESTS))
	@ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1 \
	   TEST_RUNNER='qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu' tests/run.sh $(B) $(ARM_TESTS)

# clang as a second opinion: other warnings than gcc's.
.PHONY: lint
lint:
	@tools/lint.py
	@$(foreach f,$(filter-out $(ALIEN),$(foreach d,$(FOLDERS),$(wildcard $(d)/*.c $(d)/*/*.c))), \
	   clang $(CSTD) $(WARN) $(PKG) $(LLHTTP_INC) -fsyntax-only -MF /dev/null $(call isa,$(f)) $(f) &&) true

# libFuzzer targets: the code under test is compiled with clang, coverage and sanitizers, in its own variant.
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
.PHONY: fuzz
fuzz:
	@tools/setup.sh fuzz
	@$(MAKE) --no-print-directory -j$(JOBS) fuzz-run CC=clang SAN=fuzzer-no-link,address,undefined
.PHONY: fuzz-run
fuzz-run: $(patsubst %,$(B)/fuzz/%,$(FUZZERS))
	@mkdir -p $(BUILD)/fuzz-found
	@for f in $(FUZZERS); do \
	   mkdir -p $(BUILD)/corpus/$$f; seeds=tests/fuzz/seeds/$${f#fuzz_}; \
	   ( $(B)/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
	     -artifact_prefix=$(BUILD)/fuzz-found/ $(BUILD)/corpus/$$f $$([ -d $$seeds ] && echo $$seeds) > $(B)/fuzz/$$f.log 2>&1 \
	     || echo $$f >> $(B)/fuzz/failed ) & \
	 done; wait; \
	 for f in $(FUZZERS); do echo "$$f: $$(grep -h -E 'number_of_executed_units' $(B)/fuzz/$$f.log | tr -s ' ')"; done; \
	 if [ -s $(B)/fuzz/failed ]; then for f in $$(cat $(B)/fuzz/failed); do tail -40 $(B)/fuzz/$$f.log; done; rm $(B)/fuzz/failed; exit 1; fi
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(call archives,server) $(LLHTTP_OBJ)
	@mkdir -p $(@D)
	$(Q)$(CC) -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS_server) $(LDLIBS)

.PHONY: bench
bench: $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c)) $(B)/moed
$(B)/bench/%: $(B)/bench/%.o $(call archives,scheduler)
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANF) -o $@ $^ $(LIBS_scheduler) $(LDLIBS)

PREFIX ?= /usr/local
.PHONY: install
install: $(B)/moed
	install -Dm755 $(B)/moed $(DESTDIR)$(PREFIX)/bin/moed
	install -Dm644 moed.conf $(DESTDIR)$(PREFIX)/share/doc/moed/moed.conf

.PHONY: clean
clean:
	rm -rf $(BUILD)

.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
