# Installs the library, its public headers, the command and a package file for find_package(transload).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/transload)
target_compile_features(transload_lib PUBLIC cxx_std_20)

install(TARGETS transload_lib EXPORT transloadTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/transload DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT transloadTargets NAMESPACE transload:: DESTINATION ${package_folder})
if(TARGET transload)
  install(TARGETS transload RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/transloadConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/transloadConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/transloadConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/transloadConfig.cmake ${PROJECT_BINARY_DIR}/transloadConfigVersion.cmake
        DESTINATION ${package_folder})
