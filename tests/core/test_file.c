/* Reading whole files as text: regular files and pipes are read up to a limit of bytes; folders and
 * endless devices are refused. */
#include "core/base/file.h"
#include "core/base/error.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 10000

static void
refused (const char *path, const char *part)
{
  g_autoptr (GError) error = NULL;
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST, &length, &error);

  assert_null (text);
  if (!strstr (error->message, part))
    fail_msg ("%s, wanted \"%s\"", error->message, part);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
a_file_is_read_whole_up_to_its_limit (void **state)
{
  g_autofree char *path = g_build_filename (*state, "text", NULL);
  g_autofree char *written = g_malloc (MOST + 1);
  static const gsize sizes[] = { 0, 1, 4095, 4096, 4097, MOST };

  memset (written, 'x', MOST + 1);
  for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++) {
    gsize length = 7;
    assert_true (g_file_set_contents (path, written, sizes[i], NULL));
    g_autofree char *text = weft_file_read (path, MOST, &length, NULL);
    assert_int_equal (length, sizes[i]);
    assert_memory_equal (text, written, length);
    assert_int_equal (text[length], 0);
  }
  assert_true (g_file_set_contents (path, written, MOST + 1, NULL));
  refused (path, "text: found 10001 bytes, wanted at most 10000");
}

static void
what_is_no_file_is_refused (void **state)
{
  g_autofree char *nowhere = g_build_filename (*state, "nowhere", NULL);

  refused (*state, "found a folder, wanted a file");
  refused (nowhere, "nowhere: No such file");
  refused ("/dev/zero", "/dev/zero: found no end, wanted at most 10000 bytes");
}

/* A thread that writes to a named pipe. open() waits until a reader has opened the pipe. */
static gpointer
write_words (gpointer path)
{
  int fd = open (path, O_WRONLY | O_CLOEXEC);

  /* At this moment the reader holds a pipe that has a writer, but contains no data yet. */
  g_usleep (1000);
  gssize n = write (fd, "two words", 9);
  close (fd);
  return GINT_TO_POINTER (n);
}

/* Without a writer, a read of a named pipe would wait for ever; it must be refused instead. */
static void
a_named_pipe_is_read_if_it_has_a_writer (void **state)
{
  g_autofree char *path = g_build_filename (*state, "fifo", NULL);
  gsize length;

  assert_int_equal (mkfifo (path, 0600), 0);
  refused (path, "fifo: found a pipe that nobody has opened for writing");
  GThread *writer = g_thread_new (NULL, write_words, path);
  g_autofree char *text = weft_file_read (path, MOST, &length, NULL);
  assert_int_equal (GPOINTER_TO_INT (g_thread_join (writer)), 9);
  assert_string_equal (text, "two words");
}

static void
a_pipe_is_read_like_a_file (void **state)
{
  int ends[2];
  gsize length;

  (void) state;
  assert_int_equal (pipe (ends), 0);
  assert_int_equal (write (ends[1], "two words", 9), 9);
  close (ends[1]);
  g_autofree char *path = g_strdup_printf ("/dev/fd/%d", ends[0]);
  g_autofree char *text = weft_file_read (path, MOST, &length, NULL);
  close (ends[0]);
  assert_int_equal (length, 9);
  assert_string_equal (text, "two words");
}

/* Error messages quote text of the file, which may be very long. A long quote is cut, but not
 * inside a UTF-8 character. */
static void
a_message_of_pages_is_cut_between_characters (void **state)
{
  g_autoptr (GString) long_word = g_string_new (NULL);
  g_autoptr (GError) error = NULL;

  (void) state;
  for (int i = 0; i < 100000; i++)
    g_string_append (long_word, "\xe2\x82\xac");
  weft_bad_input (&error, "found \"%s\", wanted less", long_word->str);
  assert_in_range (strlen (error->message), 3000, 4100);
  assert_true (g_utf8_validate (error->message, -1, NULL));
  assert_true (g_str_has_suffix (error->message, "..."));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_file_is_read_whole_up_to_its_limit, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (what_is_no_file_is_refused, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (a_named_pipe_is_read_if_it_has_a_writer, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (a_pipe_is_read_like_a_file),
  cmocka_unit_test (a_message_of_pages_is_cut_between_characters),
};

WEFT_TESTS (tests)
