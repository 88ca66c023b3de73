/* folder.h - a temporary folder per test: setup and teardown for cmocka_unit_test_setup_teardown().
 * The test's state is the path of the folder. */
#pragma once

int weft_test_folder_make (void **state);

/* Makes the source tree the current directory; the set-up of a test. */
int weft_test_enter_tree (void **state);
int weft_test_folder_remove (void **state);

/* Deletes a file, or a folder and everything in the folder. */
void weft_test_remove (const char *path);
