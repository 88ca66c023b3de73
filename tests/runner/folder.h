/* folder.h - a temporary folder per test: setup and teardown for cmocka_unit_test_setup_teardown().
 * The test's state is the path of the folder. */
#pragma once

int weft_test_folder_make (void **state);

/* Set-up of a test: makes the source tree the current directory. */
int weft_test_enter_tree (void **state);
int weft_test_folder_remove (void **state);

/* Deletes a file, or a folder with everything in it. */
void weft_test_remove (const char *path);
