# libweft, the library for training loops, and the files that `cmake --install` installs.
#
# The shared library exports exactly the functions of api/include/weft/weft.h: the list is read
# from the header.  weft_abi is the version in the name of the library; it changes when a call
# changes its meaning.
set(weft_abi 0)

weft_library(api weft_planner weft_exec_cpu weft_train)
target_compile_definitions(weft_api PRIVATE WEFT_VERSION="${PROJECT_VERSION}")

set(weft_header ${PROJECT_SOURCE_DIR}/api/include/weft/weft.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${weft_header})
file(READ ${weft_header} text)
string(REGEX MATCHALL "WEFT_API [^(;]*[ *]weft_[a-z_]+ \\(" calls "${text}")
list(TRANSFORM calls REPLACE "^.*[ *](weft_[a-z_]+) \\($" "\\1")
list(JOIN calls ";\n    " calls)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/libweft.map
     CONTENT "WEFT_@weft_abi@ {\n  global:\n    @calls@;\n  local: *;\n};\n" @ONLY)

add_library(weft_shared SHARED $<TARGET_OBJECTS:weft_api>)
target_link_libraries(weft_shared PRIVATE weft_api)
target_link_options(weft_shared PRIVATE -Wl,--version-script=${PROJECT_BINARY_DIR}/libweft.map)
set_target_properties(weft_shared PROPERTIES OUTPUT_NAME weft VERSION ${PROJECT_VERSION} SOVERSION ${weft_abi}
                      LINK_DEPENDS ${PROJECT_BINARY_DIR}/libweft.map LINKER_LANGUAGE C)

# The static library contains and exports all of Weft; only the functions of the header are a
# stable interface.
add_library(weft_static STATIC $<TARGET_OBJECTS:weft_api> $<TARGET_OBJECTS:weft_core> $<TARGET_OBJECTS:weft_kernels>
            $<TARGET_OBJECTS:weft_exec_cpu> $<TARGET_OBJECTS:weft_exec_sim> $<TARGET_OBJECTS:weft_planner>
            $<TARGET_OBJECTS:weft_train> $<TARGET_OBJECTS:weft_launch>)
set_target_properties(weft_static PROPERTIES OUTPUT_NAME weft LINKER_LANGUAGE C)

# Relative path from the folder of weft.pc to the prefix, so that an installed tree may be moved.
file(RELATIVE_PATH weft_pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" weft_pc_up "${weft_pc_up}")
configure_file(${PROJECT_SOURCE_DIR}/api/weft.pc.in ${PROJECT_BINARY_DIR}/weft.pc @ONLY)

# Bundled data goes to PREFIX/share/weft, where core/base/home.c searches for it.  Component
# `library` is what a program needs that uses only the shared library, as the Python package does.
install(TARGETS weft weft_static)
install(TARGETS weft_shared COMPONENT library)
install(TARGETS weft_bridge DESTINATION ${CMAKE_INSTALL_LIBDIR}/weft COMPONENT library)
install(FILES ${weft_header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft COMPONENT library)
install(DIRECTORY models topologies stacks sites validation DESTINATION share/weft COMPONENT library)
install(DIRECTORY docs/labs DESTINATION share/weft/docs)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Completion and man page, printed by the command itself.
function(weft_install_page form folder name)
  set(page ${PROJECT_BINARY_DIR}/page.${form})
  install(CODE "execute_process(COMMAND $<TARGET_FILE:weft> completion ${form}
                                OUTPUT_FILE ${page} COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${page} DESTINATION ${folder} RENAME ${name})
endfunction()
weft_install_page(bash share/bash-completion/completions weft)
weft_install_page(zsh share/zsh/site-functions _weft)
weft_install_page(man ${CMAKE_INSTALL_MANDIR}/man1 weft.1)
install(DIRECTORY docs api/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
