"""Runs rdma-core's own tests, except those for one vendor's devices, and prints a line for each.

Arguments: the folder that contains `tests`, the device, the address for tests of the connection manager, and optionally
parts of names to select tests. A line is `ok`, `FAIL` or `skip`, the name, and the reason.

First loads all drivers of the release: they must find their symbols in libibverbs, and not accept our device as theirs.
"""
import ctypes
import glob
import multiprocessing
import os
import sys
import traceback
import unittest

folder, device, address, *wanted = sys.argv[1:]
# The tests read their options from the command line, and import each other both as `tests.*` and by module name.
sys.argv = ['run_tests.py', '--dev', device]
sys.path[:0] = [folder, os.path.join(folder, 'tests')]

from args_parser import parser  # noqa: E402
import tests  # noqa: E402
import tests.base as base  # noqa: E402

parser.parse_args()
# The default before Python 3.14, which the tests were written for: other start methods need to pickle the test.
multiprocessing.set_start_method('fork')


def load_drivers():
    drivers = glob.glob('/usr/lib/*/libibverbs/*.so')
    assert drivers, 'the package ibverbs-providers is missing'
    for driver in drivers:
        ctypes.CDLL(driver, mode=os.RTLD_NOW)
    verbs, mlx5 = ctypes.CDLL('libibverbs.so.1'), ctypes.CDLL('libmlx5.so.1')
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    mlx5.mlx5dv_is_supported.restype = ctypes.c_bool
    ours = verbs.ibv_get_device_list(None)[0]
    assert ours and not mlx5.mlx5dv_is_supported(ctypes.c_void_p(ours)), 'mlx5 accepts our device'
    print('drivers', len(drivers), flush=True)


load_drivers()


def address_of_device(self, dev, port, index):
    """Replaces a search in /sys for the network interface of the device, which ours does not have."""
    self.args.append([dev, port, index, address, '02:00:00:00:00:01'])


base.RDMATestCase._get_ip_mac = address_of_device


class Lines(unittest.TestResult):
    """Prints a line for each test as soon as it ends."""

    def report(self, what, test, why=''):
        print(what, test.id().removeprefix('tests.'), why, flush=True)

    def addSuccess(self, test):
        self.report('ok', test)

    def addSkip(self, test, reason):
        self.report('skip', test, reason)

    def addError(self, test, error):
        self.report('FAIL', test, str(error[1]).replace('\n', ' '))
        print(''.join(traceback.format_exception(*error)), file=sys.stderr, flush=True)

    addFailure = addError

    def addUnexpectedSuccess(self, test):
        self.report('FAIL', test, 'succeeded unexpectedly')


def generic():
    """Yields the tests by module, sorted by name, except those for one vendor."""
    for name in sorted(os.listdir(os.path.join(folder, 'tests'))):
        module, kind = os.path.splitext(name)
        if kind == '.py' and module.startswith('test_') and not module.startswith(('test_mlx5', 'test_efa')):
            yield unittest.defaultTestLoader.loadTestsFromName('tests.' + module)


def single(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from single(test)
        else:
            yield test


chosen = [test for test in single(generic()) if not wanted or any(part in test.id() for part in wanted)]
print('chosen', len(chosen), flush=True)
unittest.TestSuite(chosen).run(Lines())
