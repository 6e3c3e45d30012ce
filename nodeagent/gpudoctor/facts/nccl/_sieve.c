/* Which lines of an NCCL log are worth reading: see sieve.py, which says how it is used.

A channel line of the usual form, `HOST:PID:TID [DEV] NCCL INFO Channel 07/0 : ...`, has a hash
that leaves out its thread and its channel's number. Of the text nothing is kept, and nothing is
read outside the part that Python hands in.
*/

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MARK "NCCL INFO "
#define MARK_BYTES 10
#define CHANNEL "Channel "
#define CHANNEL_BYTES 8
#define DULL_BYTES 8
#define DULL_MOST 32
#define WORDS_MOST 16

/* Room for the hashes of a million lines, and a quarter of that for what they push out. */
#define TABLE_BITS 20
#define SPARE_BITS 18
/* Two of the digits that Python's integers are made of. */
#define HASH_BITS 60
#define HASH_MASK ((UINT64_C(1) << HASH_BITS) - 1)
#define LINES_AT_FIRST (1 << 14)

typedef struct {
    const char *text;
    Py_ssize_t size;
} Word;

typedef struct {
    uint64_t hash; /* 0 where it is no channel line of the usual form */
    uint32_t end;  /* the place of its newline, from the begin of the part */
    uint32_t next; /* number of the next line with this hash, 0 if there is none */
    bool is_other; /* without a hash, but worth reading */
} Line;

typedef struct {
    PyObject_HEAD
    PyObject *words, *dull_words; /* tuples of bytes, which the next two point into */
    Word word[WORDS_MOST];
    uint64_t dull[DULL_MOST];
    Py_ssize_t word_count, dull_count;
    bool begins_word[256];
    uint64_t *learned, *spare;
    /* Of the part that was sifted last; its text is kept as long: */
    PyObject *data;
    Py_ssize_t start;
    Line *lines;
    size_t line_count, line_room, hash_count;
    uint32_t *slots; /* by hash, the number of the first line that has it, and 1 more */
    size_t slot_room;
    bool is_linked; /* whether `next` is known */
} Sieve;

/* Hashes. */

static uint64_t eight_bytes(const char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t mixed(uint64_t hash, uint64_t word) {
    /* The high bits come down again, for products only carry upwards. */
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

static uint64_t hashed(uint64_t hash, const char *begin, const char *end) {
    hash = mixed(hash, (uint64_t)(end - begin));
    if (end - begin < 8) {
        uint64_t word = 0;
        while (begin < end) {
            word = word << 8 | (unsigned char)*begin++;
        }
        return mixed(hash, word);
    }
    for (; end - begin > 8; begin += 8) {
        hash = mixed(hash, eight_bytes(begin));
    }
    /* The last eight, whichever of them were taken before. */
    return mixed(hash, eight_bytes(end - 8));
}

static uint64_t *learned_slot(const Sieve *self, uint64_t hash) {
    return &self->learned[hash >> (HASH_BITS - TABLE_BITS)];
}

static uint64_t *spare_slot(const Sieve *self, uint64_t hash) {
    return &self->spare[hash >> 1 & ((1 << SPARE_BITS) - 1)];
}

static bool is_learned(const Sieve *self, uint64_t hash) {
    return *learned_slot(self, hash) == hash || *spare_slot(self, hash) == hash;
}

static void learn(Sieve *self, uint64_t hash) {
    uint64_t *slot = learned_slot(self, hash);
    if (*slot != hash) {
        if (*slot) {
            /* Two that want the same slot would push each other out for ever. */
            *spare_slot(self, *slot) = *slot;
        }
        *slot = hash;
    }
}

static void forget(Sieve *self, uint64_t hash) {
    uint64_t *slots[] = {learned_slot(self, hash), spare_slot(self, hash)};
    for (int n = 0; n < 2; n++) {
        if (*slots[n] == hash) {
            *slots[n] = 0;
        }
    }
}

/* Lines. */

static const char *found(const char *begin, const char *end, const char *text, size_t size) {
    while ((size_t)(end - begin) >= size) {
        begin = memchr(begin, text[0], (size_t)(end - begin) - size + 1);
        if (!begin || memcmp(begin, text, size) == 0) {
            return begin;
        }
        begin++;
    }
    return NULL;
}

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

/* The hash of a line whose message begins with `Channel `; `mark` is where NCCL INFO stands. */
static uint64_t channel_hash(const char *begin, const char *mark, const char *end, bool prefixed) {
    const char *number = mark + MARK_BYTES + CHANNEL_BYTES;
    if (end - number < 3 || !is_digit(number[0]) || !is_digit(number[1]) || is_digit(number[2])) {
        return 0;
    }
    if (mark - begin < 2 || mark[-2] != ']' || mark[-1] != ' ') {
        return 0;
    }
    const char *device = mark - 2;
    while (device > begin && *device != ' ') {
        device--;
    }
    const char *colon = device;
    while (colon > begin && is_digit(colon[-1])) {
        colon--;
    }
    if (colon == device || colon == begin || *--colon != ':') {
        return 0;
    }
    const char *name = begin;
    if (prefixed) {
        for (name = colon; name > begin && name[-1] != ' ';) {
            name--;
        }
    }
    uint64_t hash = hashed(hashed(hashed(0, name, colon), device, mark), number + 2, end);
    return (hash & HASH_MASK) | 1;
}

static bool holds_word(const Sieve *self, const char *begin, const char *end) {
    for (; begin < end; begin++) {
        if (!self->begins_word[(unsigned char)*begin]) {
            continue;
        }
        for (Py_ssize_t n = 0; n < self->word_count; n++) {
            const Word *word = &self->word[n];
            if (end - begin >= word->size && !memcmp(begin, word->text, (size_t)word->size)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a message carries nothing; another record may be glued to it. */
static bool is_dull(const Sieve *self, const char *text, const char *end) {
    if (end - text < DULL_BYTES) {
        return false;
    }
    uint64_t first = eight_bytes(text);
    for (Py_ssize_t n = 0; n < self->dull_count; n++) {
        if (self->dull[n] == first) {
            return !found(text, end, "NCCL", 4);
        }
    }
    return false;
}

static void look_at(const Sieve *self, Line *line, const char *begin, const char *end,
                    bool prefixed) {
    const char *mark = found(begin, end, MARK, MARK_BYTES);
    line->hash = 0;
    if (!mark) {
        line->is_other = holds_word(self, begin, end);
        return;
    }
    const char *text = mark + MARK_BYTES;
    if (end - text >= CHANNEL_BYTES && !memcmp(text, CHANNEL, CHANNEL_BYTES)) {
        line->hash = channel_hash(begin, mark, end, prefixed);
        line->is_other = !line->hash;
    } else {
        line->is_other = !is_dull(self, text, end);
    }
}

static Line *new_line(Sieve *self) {
    if (self->line_count == self->line_room) {
        size_t room = self->line_room ? 2 * self->line_room : LINES_AT_FIRST;
        Line *lines = PyMem_Realloc(self->lines, room * sizeof *lines);
        if (!lines) {
            PyErr_NoMemory();
            return NULL;
        }
        self->lines = lines;
        self->line_room = room;
    }
    return &self->lines[self->line_count++];
}

static int find_lines(Sieve *self, const char *text, size_t size, bool prefixed) {
    const char *stop = text + size, *end;
    self->line_count = self->hash_count = 0;
    self->is_linked = false;
    for (const char *begin = text; begin < stop; begin = end + 1) {
        end = memchr(begin, '\n', (size_t)(stop - begin));
        if (!end) {
            break;
        }
        Line *line = new_line(self);
        if (!line) {
            return -1;
        }
        line->end = (uint32_t)(end - text);
        look_at(self, line, begin, end, prefixed);
        if (line->hash) {
            self->hash_count++;
            /* It is far away, and looked up when all lines were found. */
            __builtin_prefetch(learned_slot(self, line->hash));
        }
    }
    return 0;
}

/* Lines alike. */

static int clear_slots(Sieve *self) {
    if (self->slot_room < 2 * self->hash_count) {
        size_t room = 2 * LINES_AT_FIRST;
        while (room < 2 * self->hash_count) {
            room *= 2;
        }
        uint32_t *slots = PyMem_Realloc(self->slots, room * sizeof *slots);
        if (!slots) {
            PyErr_NoMemory();
            return -1;
        }
        self->slots = slots;
        self->slot_room = room;
    }
    if (self->slots) {
        memset(self->slots, 0, self->slot_room * sizeof *self->slots);
    }
    return 0;
}

/* Where the number of the first line with this hash is kept, or will be: 0 is no line. */
static uint32_t *slot_of(const Sieve *self, uint64_t hash) {
    size_t at = (size_t)(hash >> 1);
    for (;; at++) {
        uint32_t *slot = &self->slots[at & (self->slot_room - 1)];
        if (!*slot || self->lines[*slot - 1].hash == hash) {
            return slot;
        }
    }
}

static int link_lines(Sieve *self) {
    if (self->is_linked) {
        return 0;
    }
    if (clear_slots(self) < 0) {
        return -1;
    }
    for (size_t number = self->line_count; number-- > 0;) {
        Line *line = &self->lines[number];
        if (line->hash) {
            uint32_t *slot = slot_of(self, line->hash);
            line->next = *slot;
            *slot = (uint32_t)number + 1;
        }
    }
    self->is_linked = true;
    return 0;
}

/* What Python calls. */

static int add_row(const Sieve *self, PyObject *rows, size_t number) {
    const Line *line = &self->lines[number];
    size_t begin = number ? line[-1].end + (size_t)1 : 0;
    const char *text = PyBytes_AsString(self->data) + self->start;
    PyObject *row = Py_BuildValue("Ky#K", (unsigned long long)number, text + begin,
                                  (Py_ssize_t)(line->end - begin), (unsigned long long)line->hash);
    int failed = row ? PyList_Append(rows, row) : -1;
    Py_XDECREF(row);
    return failed;
}

static int add_kept(Sieve *self, PyObject *rows) {
    if (clear_slots(self) < 0) {
        return -1;
    }
    for (size_t number = 0; number < self->line_count; number++) {
        const Line *line = &self->lines[number];
        bool is_kept = !line->hash && line->is_other;
        if (line->hash && !is_learned(self, line->hash)) {
            uint32_t *slot = slot_of(self, line->hash);
            is_kept = !*slot;
            if (is_kept) {
                *slot = (uint32_t)number + 1;
            }
        }
        if (is_kept && add_row(self, rows, number) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *sieve_sift(PyObject *object, PyObject *args) {
    Sieve *self = (Sieve *)object;
    PyObject *data;
    Py_ssize_t start, stop;
    int prefixed;
    if (!PyArg_ParseTuple(args, "Snnp:sift", &data, &start, &stop, &prefixed)) {
        return NULL;
    }
    if (start < 0 || stop < start || stop > PyBytes_Size(data) ||
        (uint64_t)(stop - start) >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such part of the data, or it is too large");
        return NULL;
    }
    const char *text = PyBytes_AsString(data) + start;
    PyObject *before = self->data;
    self->data = Py_NewRef(data);
    self->start = start;
    int failed = find_lines(self, text, (size_t)(stop - start), prefixed);
    PyObject *rows = failed ? NULL : PyList_New(0);
    if (rows && add_kept(self, rows) < 0) {
        Py_CLEAR(rows);
    }
    PyObject *answer = rows ? Py_BuildValue("nN", (Py_ssize_t)self->line_count, rows) : NULL;
    /* Last, for it may run code that sifts. */
    Py_XDECREF(before);
    return answer;
}

static int take_hash(PyObject *number, uint64_t *hash) {
    *hash = PyLong_AsUnsignedLongLong(number);
    if (!PyErr_Occurred() && (*hash > HASH_MASK || !*hash)) {
        PyErr_SetString(PyExc_ValueError, "no line has such a hash");
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int for_each(Sieve *self, PyObject *hashes, void (*use)(Sieve *, uint64_t)) {
    PyObject *all = PyObject_GetIter(hashes), *number;
    while (all && (number = PyIter_Next(all))) {
        uint64_t hash;
        int failed = take_hash(number, &hash);
        Py_DECREF(number);
        if (failed) {
            break;
        }
        use(self, hash);
    }
    Py_XDECREF(all);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *sieve_learn(PyObject *self, PyObject *hashes) {
    return for_each((Sieve *)self, hashes, learn) ? NULL : Py_NewRef(Py_None);
}

static PyObject *sieve_forget(PyObject *self, PyObject *hashes) {
    return for_each((Sieve *)self, hashes, forget) ? NULL : Py_NewRef(Py_None);
}

static int add_alike(Sieve *self, PyObject *rows, uint64_t hash, Py_ssize_t after) {
    if (!self->hash_count) {
        return 0;
    }
    if (link_lines(self) < 0) {
        return -1;
    }
    for (uint32_t next = *slot_of(self, hash); next; next = self->lines[next - 1].next) {
        if ((Py_ssize_t)next - 1 > after && add_row(self, rows, next - 1) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *sieve_alike(PyObject *object, PyObject *args) {
    PyObject *number;
    Py_ssize_t after;
    uint64_t hash;
    if (!PyArg_ParseTuple(args, "On:alike", &number, &after) || take_hash(number, &hash) < 0) {
        return NULL;
    }
    PyObject *rows = PyList_New(0);
    if (rows && add_alike((Sieve *)object, rows, hash, after) < 0) {
        Py_CLEAR(rows);
    }
    return rows;
}

/* Its life. */

static int take_words(Sieve *self) {
    self->word_count = PyTuple_Size(self->words);
    self->dull_count = PyTuple_Size(self->dull_words);
    if (self->word_count > WORDS_MOST || self->dull_count > DULL_MOST) {
        PyErr_SetString(PyExc_ValueError, "too many words");
        return -1;
    }
    char *text;
    Py_ssize_t size;
    for (Py_ssize_t n = 0; n < self->word_count; n++) {
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(self->words, n), &text, &size) < 0) {
            return -1;
        }
        self->word[n] = (Word){text, size};
        self->begins_word[(unsigned char)text[0]] = true;
    }
    for (Py_ssize_t n = 0; n < self->dull_count; n++) {
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(self->dull_words, n), &text, &size) < 0) {
            return -1;
        }
        if (size != DULL_BYTES) {
            PyErr_SetString(PyExc_ValueError, "what a dull message begins with has eight bytes");
            return -1;
        }
        self->dull[n] = eight_bytes(text);
    }
    return 0;
}

static PyObject *sieve_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)keywords;
    PyObject *words, *dull;
    if (!PyArg_ParseTuple(args, "O!O!:Sieve", &PyTuple_Type, &words, &PyTuple_Type, &dull)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Sieve *self = (Sieve *)allocate(type, 0);
    if (!self) {
        return NULL;
    }
    self->words = Py_NewRef(words);
    self->dull_words = Py_NewRef(dull);
    self->learned = PyMem_Calloc(1 << TABLE_BITS, sizeof *self->learned);
    self->spare = PyMem_Calloc(1 << SPARE_BITS, sizeof *self->spare);
    if (!self->learned || !self->spare) {
        PyErr_NoMemory();
    } else if (!take_words(self)) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static void sieve_dealloc(PyObject *object) {
    Sieve *self = (Sieve *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(self->slots);
    PyMem_Free(self->lines);
    PyMem_Free(self->spare);
    PyMem_Free(self->learned);
    Py_XDECREF(self->data);
    Py_XDECREF(self->dull_words);
    Py_XDECREF(self->words);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"sift", sieve_sift, METH_VARARGS, NULL},
    {"alike", sieve_alike, METH_VARARGS, NULL},
    {"learn", sieve_learn, METH_O, NULL},
    {"forget", sieve_forget, METH_O, NULL},
    {0},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, sieve_new},
    {Py_tp_dealloc, sieve_dealloc},
    {Py_tp_methods, methods},
    {0},
};

static PyType_Spec type_spec = {
    .name = "gpudoctor.facts.nccl._sieve.Sieve",
    .basicsize = sizeof(Sieve),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int fill_module(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gpudoctor.facts.nccl._sieve",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__sieve(void) { return PyModuleDef_Init(&definition); }
