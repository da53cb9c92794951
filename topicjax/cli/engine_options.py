"""How to train, from what was typed: devices of this machine, or workers of a cluster."""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from topicjax.errors import UserError

if TYPE_CHECKING:
    from topicjax.engine.layout import Layout
    from topicjax.engine.run import Options


@contextlib.contextmanager
def engine_options(options: argparse.Namespace, plans_only: bool = False) -> Iterator["Options"]:
    """Give how to run: from here on jax has its devices, or a cluster its workers until the block ends."""
    from topicjax.engine.layout import layout_of, requested_cpu_devices

    if options.layout is not None and (options.lanes or options.devices is not None or options.order):
        raise UserError("--layout is given with --lanes, --devices or --order; allowed: either, not both")
    layout = layout_of(options.layout) if options.layout is not None else None
    requested_cpu_devices()  # a mistake in the environment is found before jax stumbles over it
    from topicjax.engine.run import Options

    how = Options(
        lanes=layout.lanes if layout is not None else options.lanes,
        order=layout.order if layout is not None else options.order,
        snapshots=options.snapshots,
        save_seconds=options.save_every,
        extend=options.extend,
        overrides=[f"--set {text}" for text in options.sets] + [f"--axis {text}" for text in options.axes],
        devices=(),
    )
    choose = on_this_machine if options.cluster is None else on_cluster
    with choose(options, layout, how, plans_only) as chosen:
        yield chosen


@contextlib.contextmanager
def on_this_machine(
    options: argparse.Namespace, layout: "Layout | None", how: "Options", plans_only: bool
) -> Iterator["Options"]:
    """Give the options with devices of this process."""
    from topicjax.engine.layout import choose_devices
    from topicjax.engine.run import available_devices, use_all_cores

    use_all_cores()
    yield replace(how, devices=choose_devices(available_devices(), options.devices, layout))


@contextlib.contextmanager
def on_cluster(
    options: argparse.Namespace, layout: "Layout | None", how: "Options", plans_only: bool
) -> Iterator["Options"]:
    """Give the options with the workers of a cluster; a plan of one on this machine starts none."""
    from topicjax.engine.cluster.address import check_installed, parse_address

    address = parse_address(options.cluster)
    if options.devices is not None and options.devices < 1:
        raise UserError(f"--devices is {options.devices}; allowed: 1 or more, of each worker of a cluster")
    check_installed()
    from topicjax.engine.cluster.cluster import Cluster, Planned
    from topicjax.engine.layout import choose_devices
    from topicjax.engine.run import use_one_core

    use_one_core()
    count = options.devices if layout is None else len(layout.devices)
    made = Planned(address, count) if plans_only and address.local else Cluster(address, count)
    with made as cluster:
        devices = choose_devices(cluster.devices, None, layout)
        yield replace(how, devices=devices, cluster=cluster)
