# Micro-benchmarks of the kernels, with Google Benchmark: cmake -DTRANSLOAD_BENCH=ON, then kernels_bench.
find_package(benchmark REQUIRED)

add_executable(kernels_bench ${PROJECT_SOURCE_DIR}/bench/kernels_bench.cpp)
foreach(room weights io base)
  target_link_libraries(kernels_bench PRIVATE transload_${room})
endforeach()
target_include_directories(kernels_bench PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kernels_bench PRIVATE benchmark::benchmark)
