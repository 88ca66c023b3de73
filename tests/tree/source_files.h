/* source_files.h - the files of the source tree, for tests that read it. */
#pragma once
#include <glib.h>

/* Paths below the source folder, sorted: code, pages, build files, and all files of data folders.
 * Without built files, hidden files (except .ci/) and inputs of fuzz targets. */
GPtrArray *source_files (void);

gboolean source_is_code (const char *path);

/* The contents of a file; fails the test if it is missing. */
char *source_text (const char *path);

/* "tests" of "tests/tree/test_pages.c". */
char *source_folder (const char *path);

/* Prints the errors in a line and returns their number. */
typedef int (*source_line_check) (const char *path, unsigned number, const char *line);

/* Checks every line of every file of code; the test fails on any error. */
void source_lines_each (source_line_check check);
