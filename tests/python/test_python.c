/* The Python package: a wheel is built and installed into a fresh virtual environment without a
 * network, where tests/python/test_package.py and the notebook of the tutorial run. */
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>

/* A program can load a library built with a sanitizer only if it was built with this sanitizer. */
#define PLAIN (*WEFT_SANITIZE == '\0')

/* Modules that build and test the package: those of the Debian packages that `./weft test`
 * installs. */
#define MODULES "import setuptools, wheel, pip, cffi, ipykernel, nbclient, numpy, pandas"

/* Runs a shell command in the test's folder. Returns FALSE if its exit status is not 0; *out is its
 * output with stderr, which the caller frees. */
static gboolean
run (const char *folder, const char *command, char **out)
{
  g_autofree char *both = g_strconcat ("exec 2>&1; ", command, NULL);
  char *const argv[] = { (char[]){ "sh" }, (char[]){ "-ec" }, both, NULL };
  g_autoptr (GError) error = NULL;
  int status;

  if (!g_spawn_sync (folder, (char **) argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, out, NULL,
                     &status, &error))
    fail_msg ("%s", error->message);
  return status == 0;
}

static void
run_well (const char *folder, const char *command)
{
  g_autofree char *out = NULL;

  if (!run (folder, command, &out))
    fail_msg ("%s: %s", command, out);
}

/* Returns a Python that has the modules: python3 of PATH, else /usr/bin/python3, else NULL. */
static const char *
find_python (const char *folder)
{
  static const char *const names[] = { "python3", "/usr/bin/python3" };

  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *out = NULL;
    g_autofree char *command = g_strdup_printf ("%s -c '" MODULES "'", names[i]);
    if (run (folder, command, &out))
      return names[i];
  }
  return NULL;
}

static void
a_fresh_environment_installs_and_runs_the_package (void **state)
{
  const char *python = PLAIN ? find_python (*state) : NULL;

  if (!python) {
    print_message (PLAIN ? "no Python with these modules: " MODULES "\n"
                         : "Python cannot load a library with a sanitizer\n");
    skip ();
  }
  g_autofree char *install = g_strdup_printf (
      "unset PYTHONPATH; export WEFT_BUILD_DIR=" WEFT_BUILD_DIR "; "
      "%s -m venv --system-site-packages --without-pip fresh; "
      "%s -m pip -q --no-cache-dir --disable-pip-version-check --python fresh/bin/python install "
      "--no-index --no-build-isolation " WEFT_SOURCE_DIR,
      python, python);
  run_well (*state, install);
  run_well (*state, "export WEFT=" WEFT_BINARY " WEFT_TEXT=" WEFT_SOURCE_DIR "/LICENSE; "
                    "exec fresh/bin/python " WEFT_SOURCE_DIR "/tests/python/test_package.py");
  run_well (*state, "export HOME=$PWD WEFT_TEXT=" WEFT_SOURCE_DIR "/LICENSE; "
                    "exec fresh/bin/python " WEFT_SOURCE_DIR
                    "/tests/python/run_notebook.py " WEFT_SOURCE_DIR "/docs/tutorial.ipynb");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_fresh_environment_installs_and_runs_the_package,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .seconds = 19)
