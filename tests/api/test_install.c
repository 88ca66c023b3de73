/* The tree that `cmake --install` writes is complete: pkg-config finds it, the library exports
 * exactly the public names, and the bundled data are found after the tree was moved. */
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>

/* Runs a shell command in the test's folder and returns its stdout; caller frees. Fails unless the
 * exit status is 0. */
static char *
run (const char *folder, const char *command)
{
  char *const argv[] = { (char[]){ "sh" }, (char[]){ "-ec" }, (char *) command, NULL };
  char *out = NULL;
  g_autofree char *err = NULL;
  g_autoptr (GError) error = NULL;
  int status;

  if (!g_spawn_sync (folder, (char **) argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, &out, &err,
                     &status, &error))
    fail_msg ("%s", error->message);
  if (status)
    fail_msg ("%s: %s%s", command, out, err);
  return out;
}

/* Flags of a job that needs no file of the source folder. */
#define WORDS "--model gpt2-nano --num-layers 2 --seq-length 32"

/* TRUE: weft was built without a sanitizer. A program can load a library built with a sanitizer
 * only if the program itself was built with this sanitizer. */
#define PLAIN (*WEFT_SANITIZE == '\0')

static void
an_installed_tree_works_where_it_was_moved (void **state)
{
  g_autofree char *log = run (*state, "cmake --install " WEFT_BUILD_DIR " --prefix $PWD/first");
  g_autofree char *out = NULL, *sim = NULL;

  sim =
      run (*state,
           "mv first second; unset WEFT_DATA; cd /; $OLDPWD/second/bin/weft sim --model gpt2 "
           "--topology dgx-h100 --gpus 8");
  assert_non_null (strstr (sim, "gpt2 on 8 x NVIDIA H100"));
  g_autofree char *pages =
      run (*state, "cd second/share; head -n 1 man/man1/weft.1 zsh/site-functions/_weft; "
                   "tail -n 1 bash-completion/completions/weft");
  assert_non_null (strstr (pages, ".TH WEFT 1"));
  assert_non_null (strstr (pages, "#compdef weft"));
  assert_non_null (strstr (pages, "complete -o filenames -F _weft weft"));
  if (!PLAIN)
    return;
  out = run (
      *state,
      "pc=$(find second -name weft.pc); export PKG_CONFIG_PATH=$PWD/$(dirname $pc); "
      "test $(pkg-config --modversion weft) = 0.1.0; "
      "example=$(find second -name train.c); "
      "cc -std=c11 -Wall -Wextra -Werror $example $(pkg-config --cflags --libs weft) -o own; "
      "LD_LIBRARY_PATH=$(pkg-config --variable=libdir weft) ./own second/share/doc/weft/LICENSE "
      "2 " WORDS);
  assert_non_null (strstr (out, "step   2  loss 5."));
}

static void
the_static_library_needs_only_what_pkg_config_names (void **state)
{
  if (!PLAIN)
    return;
  g_autofree char *log = run (*state, "cmake --install " WEFT_BUILD_DIR " --prefix $PWD/put");
  g_autofree char *out =
      run (*state, "pc=$(find put -name weft.pc); export PKG_CONFIG_PATH=$PWD/$(dirname $pc); "
                   "lib=$(pkg-config --variable=libdir weft); "
                   "cc $(find put -name train.c) $(pkg-config --cflags weft) $lib/libweft.a "
                   "$(pkg-config --static --libs weft | sed 's/-lweft//') -o own; "
                   "WEFT_DATA=put/share/weft ./own put/share/doc/weft/LICENSE 1 " WORDS);

  assert_non_null (strstr (out, "step   1  loss 5."));
}

/* The functions that the header declares, sorted, one per line; caller frees. */
static char *
declared (void)
{
  return run (WEFT_SOURCE_DIR "/api/include/weft",
              "tr '\\n' ' ' <weft.h | grep -o 'WEFT_API [^(;]* (' | grep -o 'weft_[a-z_]* ($' | "
              "sed 's/ ($//' | sort");
}

static void
the_shared_library_shows_the_names_of_its_header_and_no_others (void **state)
{
  g_autofree char *wanted = declared ();
  g_autofree char *found = run (WEFT_BUILD_DIR, "nm -D --defined-only libweft.so | grep ' T ' | "
                                                "sed 's/.* //; s/@.*//' | grep weft_ | sort");

  (void) state;
  assert_string_equal (found, wanted);
  assert_true (strlen (wanted) > 500);
}

static void
the_header_is_plain_c_and_cpp (void **state)
{
  g_autofree char *c =
      run (*state, "echo '#include <weft/weft.h>' >a.c; cc -std=c99 -Wall -Wextra "
                   "-pedantic -Werror -fsyntax-only -I" WEFT_SOURCE_DIR "/api/include a.c");
  g_autofree char *cpp = run (*state, "echo '#include <weft/weft.h>' >a.cc; c++ -std=c++11 -Wall "
                                      "-Wextra -pedantic -Werror -fsyntax-only -I" WEFT_SOURCE_DIR
                                      "/api/include a.cc");

  assert_string_equal (c, "");
  assert_string_equal (cpp, "");
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  IN_FOLDER (an_installed_tree_works_where_it_was_moved),
  IN_FOLDER (the_static_library_needs_only_what_pkg_config_names),
  cmocka_unit_test (the_shared_library_shows_the_names_of_its_header_and_no_others),
  IN_FOLDER (the_header_is_plain_c_and_cpp),
};

WEFT_TESTS (tests)
