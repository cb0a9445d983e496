# SPDX-License-Identifier: MIT
# The project in ${headwave_SOURCE_DIR} must bring its one target and nothing else.
get_property(targets DIRECTORY "${headwave_SOURCE_DIR}" PROPERTY BUILDSYSTEM_TARGETS)
get_property(subdirectories DIRECTORY "${headwave_SOURCE_DIR}" PROPERTY SUBDIRECTORIES)
if(NOT targets STREQUAL "headwave" OR subdirectories)
  message(FATAL_ERROR "unexpected targets or directories: ${targets} ${subdirectories}")
endif()
