/* source_files.h - the files of the source tree, for tests that read it. */
#pragma once
#include <glib.h>

/* Returns the sorted paths, relative to the source folder, of code, pages, build files, and all
 * files of data folders. Built files, hidden files (except .ci/) and inputs of fuzz targets are
 * left out. The array owns the paths; the caller frees it. */
GPtrArray *source_files (void);

/* Whether the suffix is .c, .h, .cc or .cu. */
gboolean source_is_code (const char *path);

/* Returns the contents of a file, which the caller frees. Fails the test if the file cannot be
 * read. */
char *source_text (const char *path);

/* Returns the top folder of a path: "tests" for "tests/tree/test_pages.c". The caller frees it. */
char *source_folder (const char *path);

/* Checks one line of a source file: prints errors and returns their number. */
typedef int (*source_line_check) (const char *path, unsigned number, const char *line);

/* Calls `check` for every line of every source file. The test fails if a call reports an error. */
void source_lines_each (source_line_check check);
