/* folder.h - a folder for the files of one test: the setup and teardown of
 * cmocka_unit_test_setup_teardown(); the test's state is its path. */
#pragma once

int weft_test_folder_make (void **state);
int weft_test_folder_remove (void **state);

/* A file, or a folder with all that is in it. */
void weft_test_remove (const char *path);
