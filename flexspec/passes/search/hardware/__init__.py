"""What a model can run on: presets, files of users, and this machine once it has been measured."""

from flexspec.passes.search.hardware.description import (
    COLLECTIVE_KINDS,
    OPERATOR_KINDS,
    CollectiveKind,
    CollectiveTable,
    Device,
    Hardware,
    Host,
    HostTimes,
    Link,
    MessageTimes,
    OperatorKind,
    OperatorTable,
)
from flexspec.passes.search.hardware.load import PRESETS, load_hardware

__all__ = [
    "COLLECTIVE_KINDS",
    "OPERATOR_KINDS",
    "PRESETS",
    "CollectiveKind",
    "CollectiveTable",
    "Device",
    "Hardware",
    "Host",
    "HostTimes",
    "Link",
    "MessageTimes",
    "OperatorKind",
    "OperatorTable",
    "load_hardware",
]
