# Installs the library, its public headers and a package file for find_package(transload).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
