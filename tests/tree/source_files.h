/* source_files.h - the files of the source tree, for tests that read it. */
#pragma once
#include <glib.h>

/* Paths below the source folder, sorted: code, pages, build files, and all files of data folders.
 * What is built, hidden (but .ci/) or fed to fuzz targets is left out. */
GPtrArray *source_files (void);

gboolean source_is_code (const char *path);

/* The whole file; the test fails without it. */
char *source_text (const char *path);

/* "tests" of "tests/tree/test_pages.c". */
char *source_folder (const char *path);

/* Prints what is wrong with a line and returns the number of errors. */
typedef int (*source_line_check) (const char *path, unsigned number, const char *line);

/* Checks every line of every file of code; the test fails on any error. */
void source_lines_each (source_line_check check);
