#include "interop/wiring.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/sheet.h"
#include <libxml/parser.h>
#include <math.h>
#include <string.h>

/* The most GPUs and ports of a node (core/cluster.def), and NVLinks of one GPU (H100, B200). */
enum { MOST_DEVICES = 4096, MOST_LINKS = 18 };

/* ---------------------------------------------------------------------- nvidia-smi topo -m */

struct matrix {
  const char *name;
  GPtrArray *device; /* char *: names of the columns */
  GArray *cell;      /* guint8 [device][device]: number of NVLinks, or IS_PATH + index in paths[] */
  unsigned gpus, line;
};

/* How two devices are connected without NVLink, as the legend of nvidia-smi says. */
static const char *const paths[] = { "X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", NULL };
enum { IS_PATH = 128, PIX = 1 };

/* The words of a line, without the codes that underline the header of a terminal. */
static char **
words_of (const char *line)
{
  g_autoptr (GRegex) codes = g_regex_new ("\x1b\\[[0-9;]*m", 0, 0, NULL);
  g_autofree char *plain = g_regex_replace_literal (codes, line, -1, 0, " ", 0, NULL);
  g_auto (GStrv) parts = g_strsplit_set (plain, " \t\r", -1);
  GPtrArray *words = g_ptr_array_new ();

  for (unsigned i = 0; parts[i]; i++)
    if (*parts[i])
      g_ptr_array_add (words, g_strdup (parts[i]));
  g_ptr_array_add (words, NULL);
  return (char **) g_ptr_array_free (words, FALSE);
}

static gboolean
is_gpu (const char *word)
{
  return g_str_has_prefix (word, "GPU") && g_ascii_isdigit (word[3]);
}

/* Reads the header of the matrix: the names of all devices, up to the column "CPU Affinity". */
static void
read_header (struct matrix *m, char *const *words)
{
  for (; *words && strcmp (*words, "CPU") != 0 && strcmp (*words, "NUMA") != 0; words++) {
    m->gpus += is_gpu (*words);
    g_ptr_array_add (m->device, g_strdup (*words));
  }
}

static gboolean
read_cell (struct matrix *m, const char *word, GError **error)
{
  gint64 links;
  guint8 cell;

  if (g_str_has_prefix (word, "NV") &&
      g_ascii_string_to_signed (word + 2, 10, 1, MOST_LINKS, &links, NULL)) {
    cell = (guint8) links;
    g_array_append_val (m->cell, cell);
    return TRUE;
  }
  for (guint8 p = 0; paths[p]; p++)
    if (strcmp (paths[p], word) == 0) {
      cell = IS_PATH + p;
      g_array_append_val (m->cell, cell);
      return TRUE;
    }
  return weft_bad_input (error,
                         "%s:%u: found \"%s\", wanted X, NV1 to NV%d, PIX, PXB, PHB, NODE "
                         "or SYS",
                         m->name, m->line, word, MOST_LINKS);
}

static gboolean
read_row (struct matrix *m, char *const *words, GError **error)
{
  unsigned row = m->cell->len / m->device->len;

  if (row == m->device->len || strcmp (words[0], m->device->pdata[row]) != 0)
    return weft_bad_input (error, "%s:%u: found row \"%s\", wanted %s", m->name, m->line, words[0],
                           row < m->device->len ? (const char *) m->device->pdata[row]
                                                : "the end of the matrix");
  for (unsigned i = 0; i < m->device->len; i++) {
    if (!words[i + 1])
      return weft_bad_input (error, "%s:%u: row %s has %u cells, wanted %u", m->name, m->line,
                             words[0], i, m->device->len);
    if (!read_cell (m, words[i + 1], error))
      return FALSE;
  }
  return TRUE;
}

/* Reads lines up to the end of the matrix; the legend follows. */
static gboolean
read_lines (struct matrix *m, const char *text, GError **error)
{
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);

  for (unsigned i = 0; lines[i]; i++) {
    g_auto (GStrv) words = words_of (lines[i]);
    m->line = i + 1;
    gboolean header = words[0] && is_gpu (words[0]) && (!words[1] || strcmp (words[1], "X") != 0) &&
                      m->device->len == 0;
    if (header)
      read_header (m, words);
    else if (words[0] && m->device->len && m->cell->len < m->device->len * m->device->len &&
             !read_row (m, words, error))
      return FALSE;
    if (m->device->len > MOST_DEVICES)
      return weft_bad_input (error, "%s:%u: more than %d devices", m->name, m->line, MOST_DEVICES);
  }
  if (m->gpus == 0)
    return weft_bad_input (error, "%s: no row of GPUs, wanted the output of nvidia-smi topo -m",
                           m->name);
  return m->cell->len == m->device->len * m->device->len ||
         weft_bad_input (error, "%s: the matrix ends after %u of %u rows", m->name,
                         m->cell->len / m->device->len, m->device->len);
}

static guint8
cell_at (const struct matrix *m, unsigned row, unsigned column)
{
  return g_array_index (m->cell, guint8, row * m->device->len + column);
}

/* Sets the number of NVLinks of a GPU from the cells of the matrix. If the links lead directly to
 * other GPUs, a cell is the number of links between two GPUs, and a GPU has the sum of its row. If
 * that sum exceeds MOST_LINKS, the links lead to switches, and each cell is the number of all links
 * of a GPU. */
static gboolean
count_links (const struct matrix *m, struct weft_wiring *out, GError **error)
{
  unsigned each = m->gpus > 1 ? cell_at (m, 0, 1) : IS_PATH;

  for (unsigned a = 0; a < m->gpus; a++)
    for (unsigned b = 0; b < m->gpus; b++)
      if (a != b && (cell_at (m, a, b) < IS_PATH || each < IS_PATH) && cell_at (m, a, b) != each)
        return weft_bad_input (error,
                               "%s: %s and %s are connected in another way than GPU0 and GPU1; a "
                               "topology of Weft has one kind of link between all GPUs of a node",
                               m->name, (const char *) m->device->pdata[a],
                               (const char *) m->device->pdata[b]);
  if (each < IS_PATH)
    out->links = each * (m->gpus - 1) > MOST_LINKS ? each : each * (m->gpus - 1);
  return TRUE;
}

/* Counts the network ports, and the GPUs that share a PCIe switch with a port or with one
 * another. */
static void
count_ports (const struct matrix *m, struct weft_wiring *out)
{
  for (unsigned d = 0; d < m->device->len; d++) {
    unsigned near = d < m->gpus;
    for (unsigned g = 0; g < m->gpus; g++)
      near += cell_at (m, d, g) == IS_PATH + PIX;
    out->nics += d >= m->gpus;
    out->per_switch = MAX (out->per_switch, near);
  }
  if (out->nics == 0 && out->per_switch < 2)
    out->per_switch = 0; /* NVLink hides the switches */
}

static gboolean
smi_read (const char *text, const char *name, struct weft_wiring *out, GError **error)
{
  g_autoptr (GPtrArray) device = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GArray) cell = g_array_new (FALSE, FALSE, sizeof (guint8));
  struct matrix m = { name, device, cell, 0, 0 };

  *out = (struct weft_wiring){ 0 };
  if (!read_lines (&m, text, error) || !count_links (&m, out, error))
    return FALSE;
  out->gpus = m.gpus;
  count_ports (&m, out);
  return TRUE;
}

/* ------------------------------------------------------------------------------ NCCL's XML */

struct xml {
  const char *name;
  struct weft_wiring *out;
  gboolean first; /* no GPU yet */
};

/* A number of an attribute; 0: it is not given. */
static double
number_of (xmlNode *node, const char *attribute)
{
  xmlChar *text = xmlGetProp (node, (const xmlChar *) attribute);
  double value = text ? g_ascii_strtod ((const char *) text, NULL) : 0;

  xmlFree (text);
  return isfinite (value) ? CLAMP (value, 0, 1e15) : 0;
}

static gboolean
is_named (const xmlNode *node, const char *name)
{
  return node->type == XML_ELEMENT_NODE && strcmp ((const char *) node->name, name) == 0;
}

/* Adds a GPU: all GPUs of a node must be alike. */
static gboolean
add_gpu (struct xml *x, xmlNode *gpu, GError **error)
{
  unsigned links = 0, capability = (unsigned) MIN (number_of (gpu, "sm"), 10000);

  for (xmlNode *child = gpu->children; child; child = child->next)
    if (is_named (child, "nvlink"))
      links += (unsigned) MIN (number_of (child, "count"), 1000);
  if (!x->first && (links != x->out->links || capability != x->out->capability))
    return weft_bad_input (error,
                           "%s:%ld: this GPU has sm = %u and %u NVLinks, the GPUs before it have "
                           "sm = %u and %u; a node of Weft has GPUs of one kind",
                           x->name, xmlGetLineNo (gpu), capability, links, x->out->capability,
                           x->out->links);
  x->first = FALSE;
  x->out->links = links;
  x->out->capability = capability;
  x->out->gpus++;
  return TRUE;
}

/* Counts the ports with the highest speed: slower ones are for storage and management. */
static void
add_port (struct xml *x, xmlNode *net)
{
  double bytes = number_of (net, "speed") * 1e6 / 8; /* Mb/s */

  if (bytes > x->out->nic_bytes)
    x->out->nics = 0;
  if (bytes >= x->out->nic_bytes)
    x->out->nics++;
  x->out->nic_bytes = MAX (bytes, x->out->nic_bytes);
}

/* libxml2 bounds the depth of a document (256 levels). *gpus receives the GPUs below the node. */
static gboolean
walk (struct xml *x, xmlNode *node, unsigned *gpus, GError **error)
{
  for (xmlNode *child = node->children; child; child = child->next) {
    unsigned below = is_named (child, "gpu");
    if (below && !add_gpu (x, child, error))
      return FALSE;
    if (is_named (child, "net"))
      add_port (x, child);
    if (!walk (x, child, &below, error))
      return FALSE;
    if (is_named (child, "pci") && is_named (node, "cpu"))
      x->out->per_switch = MAX (x->out->per_switch, below);
    *gpus += below;
  }
  return TRUE;
}

static gboolean
read_document (xmlDoc *document, const char *name, struct weft_wiring *out, GError **error)
{
  struct xml x = { name, out, TRUE };
  xmlNode *root = xmlDocGetRootElement (document);
  unsigned gpus = 0;

  if (document->intSubset || !root || !is_named (root, "system"))
    return weft_bad_input (error,
                           "%s: wanted an element \"system\" without a DTD: a file that NCCL "
                           "wrote to NCCL_TOPO_DUMP_FILE",
                           name);
  if (!walk (&x, root, &gpus, error))
    return FALSE;
  return (out->gpus > 0 && out->gpus <= MOST_DEVICES) ||
         weft_bad_input (error, "%s: %u GPUs, wanted 1 to %d", name, out->gpus, MOST_DEVICES);
}

static gboolean
nccl_read (const char *text, const char *name, struct weft_wiring *out, GError **error)
{
  int options = XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING | XML_PARSE_NOBLANKS;
  xmlDoc *document = xmlReadMemory (text, (int) strlen (text), NULL, NULL, options);
  const xmlError *problem = xmlGetLastError ();

  *out = (struct weft_wiring){ 0 };
  if (!document) {
    g_autofree char *what = g_strstrip (g_strdup (problem ? problem->message : "no XML"));
    g_autofree char *valid = g_utf8_make_valid (what, -1);
    return weft_bad_input (error, "%s:%d: %s", name, problem ? problem->line : 1, valid);
  }
  gboolean ok = read_document (document, name, out, error);
  xmlFreeDoc (document);
  return ok;
}

/* -------------------------------------------------------------------------------- topology */

/* Bytes per second and direction of an NVLink: generations 2 to 4 (V100, A100, H100) have 25 GB/s,
 * generation 5 (Blackwell) has 50 (NVIDIA, "NVLink and NVLink Switch"). */
static double
link_bytes (const struct weft_cluster *base)
{
  return base->f.gpu_capability >= 100 ? 50e9 : 25e9;
}

static void
set_text (GHashTable *fields, const char *field, char *text)
{
  g_hash_table_insert (fields, g_strdup (field), text);
}

static void
set_int (GHashTable *fields, const char *field, unsigned value)
{
  if (value)
    set_text (fields, field, g_strdup_printf ("%u", value));
}

/* Sets the specification of a rate to `wanted`, and scales the reachable rate by the same
 * factor. */
static void
set_rate (GHashTable *fields, const char *field, double rate, double spec, double wanted)
{
  g_autofree char *name = g_strconcat (field, "_spec", NULL);

  if (wanted <= 0 || fabs (wanted / spec - 1) < 0.01)
    return;
  set_text (fields, field, g_strdup_printf ("%.4gGB/s", rate * wanted / spec / 1e9));
  set_text (fields, name, g_strdup_printf ("%.4gGB/s", wanted / 1e9));
}

/* Returns the fields that differ from those of the base topology, as texts of a topology file. */
static GHashTable *
fields_of (const struct weft_wiring *w, const struct weft_cluster *base)
{
  GHashTable *fields = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);

  set_int (fields, "node_gpus", w->gpus);
  set_int (fields, "node_nics", w->nics);
  set_int (fields, "node_gpus_per_switch", w->per_switch);
  set_rate (fields, "node_intra_bandwidth", base->f.node_intra_bandwidth,
            base->f.node_intra_bandwidth_spec, w->links * link_bytes (base));
  set_rate (fields, "node_nic_bandwidth", base->f.node_nic_bandwidth,
            base->f.node_nic_bandwidth_spec, w->nic_bytes);
  return fields;
}

static gboolean
is_like (const struct weft_wiring *w, const struct weft_cluster *base, const char *name,
         GError **error)
{
  gboolean nvlink = base->f.node_intra != WEFT_PCIE;

  if (w->capability && base->f.gpu_capability && w->capability != base->f.gpu_capability)
    return weft_bad_input (error,
                           "topology %s has GPUs of capability %" G_GINT64_FORMAT
                           ", the file has GPUs of %u; give --topology with the same GPU",
                           name, (gint64) base->f.gpu_capability, w->capability);
  if (w->gpus > 1 && nvlink != (w->links > 0))
    return weft_bad_input (error,
                           "the GPUs of topology %s are connected by %s, those of the file "
                           "by %s; give --topology with such a node",
                           name, nvlink ? "NVLink" : "PCIe", w->links ? "NVLink" : "PCIe");
  return TRUE;
}

/* Appends the lines of the base topology. Changed fields have their new value. */
static void
append_lines (GString *out, const char *text, const weft_sheet_file *file, GHashTable *fields,
              const char *source)
{
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);

  for (unsigned i = 0; lines[i] && (lines[i + 1] || *lines[i]); i++) {
    const char *value = NULL;
    for (unsigned f = 0; f < file->sheet->table->n && !value; f++)
      if (file->from[f].entry && file->from[f].entry->line == i + 1)
        value = g_hash_table_lookup (fields, file->sheet->table->field[f].name);
    if (value)
      g_string_append_printf (out, "# derived: %s; the base has: %s\n%.*s= %s\n", source, lines[i],
                              (int) strcspn (lines[i], "="), lines[i], value);
    else
      g_string_append_printf (out, "%s\n", lines[i]);
  }
}

char *
weft_wiring_topology (const struct weft_wiring *wiring, const char *base, const char *source,
                      GError **error)
{
  struct weft_cluster cluster;
  gsize length;

  if (!weft_cluster_load (base, &cluster, error) || !is_like (wiring, &cluster, base, error))
    return NULL;
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (&weft_cluster_sheet, base, error);
  const weft_conf *conf = file ? file->conf->pdata[0] : NULL;
  g_autofree char *text = conf ? weft_file_read (conf->name, 1 << 20, &length, error) : NULL;
  if (!text)
    return NULL;
  g_autoptr (GHashTable) fields = fields_of (wiring, &cluster);
  GString *out = g_string_new (NULL);
  append_lines (out, text, file, fields, source);
  return g_string_free (out, FALSE);
}

/* --------------------------------------------------------------------------------- formats */

const struct weft_wiring_format weft_wiring_formats[] = {
  { "nvidia-smi", "the matrix of nvidia-smi topo -m", smi_read },
  { "nccl", "the XML file of NCCL_TOPO_DUMP_FILE", nccl_read },
  { NULL, NULL, NULL },
};

const struct weft_wiring_format *
weft_wiring_format (const char *name)
{
  for (unsigned i = 0; weft_wiring_formats[i].name; i++)
    if (strcmp (weft_wiring_formats[i].name, name) == 0)
      return &weft_wiring_formats[i];
  return NULL;
}
