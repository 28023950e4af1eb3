"""Runs rdma-core's own tests that are not for one vendor's devices, and prints a line for each.

Arguments: the folder that has them in `tests`, the device, the address that the connection manager's tests use, then parts of
names: only tests with one of them in their names run. A line is `ok`, `FAIL` or `skip`, the name, and why.

Before that, all drivers of the release are loaded: they find what they ask libibverbs for, and take our device for none of theirs.
"""
import ctypes
import glob
import multiprocessing
import os
import sys
import traceback
import unittest

folder, device, address, *wanted = sys.argv[1:]
# The tests read their options from the command line, and import each other as `tests.*` and as modules of their own.
sys.argv = ['run_tests.py', '--dev', device]
sys.path[:0] = [folder, os.path.join(folder, 'tests')]

from args_parser import parser  # noqa: E402
import tests  # noqa: E402
import tests.base as base  # noqa: E402

parser.parse_args()
# What the tests were written for, and the default before Python 3.14: other ways to start a process want to pickle the test.
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
    assert ours and not mlx5.mlx5dv_is_supported(ctypes.c_void_p(ours)), 'our device is taken for mlx5'
    print('drivers', len(drivers), flush=True)


load_drivers()


def address_of_device(self, dev, port, index):
    """Stands in for a search in /sys for the network interface below the device, which ours has not."""
    self.args.append([dev, port, index, address, '02:00:00:00:00:01'])


base.RDMATestCase._get_ip_mac = address_of_device


class Lines(unittest.TestResult):
    """A line for each test, as soon as it has ended."""

    def say(self, what, test, why=''):
        print(what, test.id().removeprefix('tests.'), why, flush=True)

    def addSuccess(self, test):
        self.say('ok', test)

    def addSkip(self, test, reason):
        self.say('skip', test, reason)

    def addError(self, test, error):
        self.say('FAIL', test, str(error[1]).replace('\n', ' '))
        print(''.join(traceback.format_exception(*error)), file=sys.stderr, flush=True)

    addFailure = addError

    def addUnexpectedSuccess(self, test):
        self.say('FAIL', test, 'succeeded unexpectedly')


def generic():
    """The tests by module, in the order of their names, but for those of one vendor."""
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
