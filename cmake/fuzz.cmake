# libFuzzer targets (clang only), each with seeds in fuzz/corpus/<name>; `ctest -L fuzz` runs every one for 60 seconds.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "TRANSLOAD_FUZZ needs clang, e.g. -DCMAKE_CXX_COMPILER=clang++-14")
endif()
enable_testing()

function(transload_fuzzer name)
  add_executable(fuzz_${name} ${PROJECT_SOURCE_DIR}/fuzz/${name}_fuzzer.cpp)
  foreach(room ${ARGN})
    target_link_libraries(fuzz_${name} PRIVATE transload_${room})
  endforeach()
  target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  # New inputs and crashes go to the build folder; the seeds stay as they are.
  set(findings ${PROJECT_BINARY_DIR}/fuzz/${name})
  file(MAKE_DIRECTORY ${findings})
  add_test(NAME fuzz_${name} COMMAND fuzz_${name} -max_total_time=60 -timeout=10 -malloc_limit_mb=256 -artifact_prefix=${findings}/
                                     ${findings} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz TIMEOUT 180)
endfunction()

transload_fuzzer(json io base)
transload_fuzzer(safetensors io base)
transload_fuzzer(gguf weights io base)
transload_fuzzer(config model weights io base)
transload_fuzzer(onnx onnx graph weights io base)
transload_fuzzer(trtllm trtllm model weights io base)
