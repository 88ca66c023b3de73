/* Wiring of nodes as nvidia-smi and NCCL print it, as topology files. The matrices and XML files
 * have the form of the real ones, with fewer devices. */
#include "core/base/error.h"
#include "interop/wiring.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

static struct weft_wiring
read_as (const char *format, const char *text)
{
  g_autoptr (GError) error = NULL;
  struct weft_wiring wiring;

  if (!weft_wiring_format (format)->read (text, "wires", &wiring, &error))
    fail_msg ("%s", error->message);
  return wiring;
}

static void
assert_refused (const char *format, const char *text, const char *part)
{
  g_autoptr (GError) error = NULL;
  struct weft_wiring wiring;

  assert_false (weft_wiring_format (format)->read (text, "wires", &wiring, &error));
  assert_int_equal (weft_error_exit_status (error), 2);
  if (!strstr (error->message, part))
    fail_msg ("%s; wanted \"%s\"", error->message, part);
}

/* Four GPUs on switches, two ports; the header is underlined as on a terminal. */
static const char switched[] =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-31\t0\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tPIX\tSYS\t0-31\t0\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t32-63\t1\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPIX\t32-63\t1\n"
    "NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tSYS\tPIX\tPIX\tSYS\t X \n\n"
    "Legend:\n\n  X    = Self\n  PIX  = one bridge\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";

static const char pcie[] = "     GPU0 GPU1 mlx5_0 CPU Affinity\nGPU0  X   PHB  SYS    0-7\n"
                           "GPU1 PHB   X   SYS    0-7\nmlx5_0 SYS SYS  X\n";

static const char mesh[] = "     GPU0 GPU1 GPU2 CPU Affinity\nGPU0  X   NV2 NV2 0-7\n"
                           "GPU1 NV2   X  NV2 0-7\nGPU2 NV2  NV2  X  0-7\n";

static void
a_matrix_says_links_ports_and_switches (void **state)
{
  struct weft_wiring w = read_as ("nvidia-smi", switched);

  (void) state;
  assert_int_equal (w.gpus, 4);
  assert_int_equal (w.links, 18); /* all 18 lead to the switches */
  assert_int_equal (w.nics, 2);
  assert_int_equal (w.per_switch, 2);
  w = read_as ("nvidia-smi", mesh);
  assert_int_equal (w.links, 4); /* two to each of two neighbours */
  assert_int_equal (w.nics, 0);
  assert_int_equal (w.per_switch, 0);
  w = read_as ("nvidia-smi", pcie);
  assert_int_equal (w.links, 0);
  assert_int_equal (w.nics, 1);
  assert_int_equal (w.per_switch, 1);
}

static void
a_matrix_that_no_topology_can_say_is_refused (void **state)
{
  (void) state;
  assert_refused ("nvidia-smi",
                  "     GPU0 GPU1 GPU2\nGPU0 X NV2 SYS\nGPU1 NV2 X NV2\nGPU2 SYS NV2 X\n",
                  "GPU0 and GPU2 are connected in another way");
  assert_refused ("nvidia-smi", "     GPU0 GPU1\nGPU0 X NV99\nGPU1 NV99 X\n",
                  "wires:2: found \"NV99\", wanted X, NV1 to NV18");
  assert_refused ("nvidia-smi", "     GPU0 GPU1\nGPU0 X\n", "row GPU0 has 1 cells, wanted 2");
  assert_refused ("nvidia-smi", "     GPU0 GPU1\nGPU1 X NV2\n", "found row \"GPU1\", wanted GPU0");
  assert_refused ("nvidia-smi", "     GPU0 GPU1\nGPU0 X NV2\n", "ends after 1 of 2 rows");
  assert_refused ("nvidia-smi", "No devices were found\n", "wanted the output of nvidia-smi");
}

#define GPU(bus, rank)                                                                             \
  "<pci busid=\"" bus "\" class=\"0x030200\"><gpu dev=\"" rank "\" sm=\"90\" rank=\"" rank "\">"   \
  "<nvlink target=\"0000:05:00.0\" count=\"5\"/><nvlink target=\"0000:06:00.0\" count=\"4\"/>"     \
  "</gpu></pci>"
#define PORT(name, speed)                                                                          \
  "<pci busid=\"0000:20:00.0\" class=\"0x020700\"><nic><net name=\"" name "\" speed=\"" speed      \
  "\"/></nic></pci>"

static const char xml[] =
    "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:10:00.0\" class=\"0x060400\">" GPU (
        "0000:11:00.0", "0") GPU ("0000:12:00.0", "1")
        PORT ("mlx5_0", "200000") "</pci>"
                                  "<pci busid=\"0000:30:00.0\" class=\"0x060400\">" GPU (
                                      "0000:31:00.0",
                                      "2") "</pci></cpu>"
                                           "<cpu numaid=\"1\">" PORT ("mlx5_1", "200000")
                                               PORT ("eth0", "25000") "</cpu></system>";

static void
xml_of_nccl_says_the_speed_of_ports (void **state)
{
  struct weft_wiring w = read_as ("nccl", xml);

  (void) state;
  assert_int_equal (w.gpus, 3);
  assert_int_equal (w.links, 9);
  assert_int_equal (w.capability, 90);
  assert_int_equal (w.nics, 2); /* eth0 is slower */
  assert_int_equal (w.nic_bytes, 25e9);
  assert_int_equal (w.per_switch, 2);
  assert_refused ("nccl", "<system><cpu>", "wires:1: ");
  assert_refused ("nccl", "<graphs/>", "wanted an element \"system\"");
  assert_refused ("nccl", "<!DOCTYPE s [<!ENTITY a \"b\">]><system>&a;</system>", "without a DTD");
  assert_refused ("nccl", "<system/>", "0 GPUs, wanted 1");
  assert_refused ("nccl", "<system><gpu sm=\"90\"/><gpu sm=\"80\"/></system>", "GPUs of one kind");
}

static void
a_wiring_changes_a_topology_that_loads (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = NULL;
  struct weft_wiring w = read_as ("nccl", xml);
  struct weft_cluster cluster;

  (void) state;
  g_autofree char *text = weft_wiring_topology (&w, "dgx-h100", "a file", &error);
  assert_non_null (text);
  int fd = g_file_open_tmp ("weft-XXXXXX.ini", &path, NULL);
  assert_true (fd >= 0 && g_close (fd, NULL) && g_file_set_contents (path, text, -1, NULL));
  gboolean loads = weft_cluster_load (path, &cluster, &error);
  remove (path);
  if (!loads)
    fail_msg ("%s", error->message);
  assert_int_equal (cluster.f.node_gpus, 3);
  assert_int_equal (cluster.f.node_nics, 2);
  assert_float_equal (cluster.f.node_nic_bandwidth_spec / 25e9, 1, 1e-9);
  assert_float_equal (cluster.f.node_intra_bandwidth_spec / 225e9, 1, 1e-9); /* 9 of 18 links */
  assert_null (weft_wiring_topology (&w, "dgx-a100", "a file", &error));
  assert_non_null (strstr (error->message, "GPUs of capability 80, the file has GPUs of 90"));
  g_clear_error (&error);
  w = read_as ("nvidia-smi", pcie);
  assert_null (weft_wiring_topology (&w, "dgx-h100", "a file", &error));
  assert_non_null (strstr (error->message, "connected by NVLink, those of the file by PCIe"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_matrix_says_links_ports_and_switches),
  cmocka_unit_test (a_matrix_that_no_topology_can_say_is_refused),
  cmocka_unit_test (xml_of_nccl_says_the_speed_of_ports),
  cmocka_unit_test (a_wiring_changes_a_topology_that_loads),
};

WEFT_TESTS (tests)
