# The version that `weft --version` prints: that of the project, and the commit it was built from.
# The commit is read at every build, into a header that changes only when the commit does.
set(weft_version ${PROJECT_BINARY_DIR}/version)
file(WRITE ${weft_version}/write.cmake [=[
execute_process(COMMAND git -C "${source}" describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit)
  set(commit " (commit ${commit})")
endif()
set(text "#define WEFT_COMMIT \"${commit}\"\n")
if(EXISTS ${header})
  file(READ ${header} old)
endif()
if(NOT text STREQUAL "${old}")
  file(WRITE ${header} "${text}")
endif()
]=])
add_custom_target(weft_commit BYPRODUCTS ${weft_version}/commit.h
  COMMAND ${CMAKE_COMMAND} -Dsource=${PROJECT_SOURCE_DIR} -Dheader=${weft_version}/commit.h
          -P ${weft_version}/write.cmake
  VERBATIM)
add_dependencies(weft_cli weft_commit)
set_source_files_properties(cli/version.c PROPERTIES
  COMPILE_DEFINITIONS WEFT_VERSION="${PROJECT_VERSION}"
  COMPILE_OPTIONS -I${weft_version})
