# SPDX-License-Identifier: Apache-2.0
# The device kernels (kernels/cuda/), twice: by g++ for the emulated device of tests/simt/, where their tests run, and by
# nvcc for real ones.
CXX      ?= g++
CUDA_SRC := $(wildcard kernels/cuda/*.cu)

# Alignment is checked in every variant: the hardware faults where x86 does not. A function may bear its descriptor's name.
EMU_FLAGS := -std=gnu++17 -D_GNU_SOURCE -I. -Itests/simt/include -MMD -MP -fno-omit-frame-pointer -Wall -Wextra -Werror
EMU_SAN   := -fsanitize=alignment$(if $(SAN),$(comma)$(SAN)) -fno-sanitize-recover=all $(if $(SAN),-Wno-maybe-uninitialized)
# The runtime of the emulated device is not what ThreadSanitizer should look at: it tells it who waits for whom.
EMU_RUNTIME_SAN := $(if $(findstring thread,$(SAN)),-DSIMT_TSAN,$(if $(SAN),-fsanitize=$(SAN)))
EMU_RUNTIME     := $(patsubst %.cc,$(B)/emu/%.o,$(wildcard tests/simt/*.cc))
EMU_KERNELS     := $(patsubst %.cu,$(B)/emu/%.o,$(CUDA_SRC))
CUDA_TESTS      := $(patsubst tests/cuda/%.cu,$(B)/tests/cuda_%,$(wildcard tests/cuda/*.cu))
# Fibers switch stacks in x86-64 assembly.
ifneq ($(ARCH),x86_64)
CUDA_TESTS :=
endif

$(B)/emu/%.o: %.cu
	@mkdir -p $(@D)
	@echo "EMU  $<"
	$(Q)$(CXX) $(EMU_FLAGS) $(CFLAGS) $(EMU_SAN) -x c++ -c -o $@ $<
$(B)/emu/%.o: %.cc
	@mkdir -p $(@D)
	@echo "EMU  $<"
	$(Q)$(CXX) $(EMU_FLAGS) $(CFLAGS) $(EMU_RUNTIME_SAN) -c -o $@ $<
$(B)/tests/cuda_%: $(B)/emu/tests/cuda/%.o $(EMU_KERNELS) $(EMU_RUNTIME) $(call archives,kernels)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_SAN) -o $@ $^ $(LIBS_kernels) $(LDLIBS)

# Every card that is asked for, no warning, and no kernel over its written limit (tools/ptxas_check.py).
NVCC       ?= $(or $(shell command -v nvcc),/usr/local/cuda/bin/nvcc)
CUDA_ARCHS ?= 80 86 89 90a 100 120
NVCC_FLAGS := -std=c++17 -I. -O3 -lineinfo -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -Xptxas -v \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
.PHONY: cuda
cuda: $(patsubst %.cu,$(B)/cuda/%.o,$(CUDA_SRC))
	@tools/ptxas_check.py $(patsubst %.cu,$(B)/cuda/%.log,$(CUDA_SRC))
$(B)/cuda/%.o: %.cu $(wildcard kernels/cuda/*.cuh) kernels/dev.h
	@mkdir -p $(@D)
	@echo "NVCC $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -c -o $@ $< > $(@:.o=.log) 2>&1 || { cat $(@:.o=.log); exit 1; }
