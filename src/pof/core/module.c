/* An empty Python module: the core's functions are called through ctypes, and need neither Python nor torch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", "The compiled core of pof.", -1, NULL,
                                        NULL,                  NULL,    NULL,                        NULL};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModule_Create(&definition); }
