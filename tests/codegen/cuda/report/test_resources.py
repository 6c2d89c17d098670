"""The parsers of what the compilers say of a binary, on samples of it."""

from flexspec.codegen.cuda.report.resources import Resources, amd_resources, nvidia_resources

USAGE = """
Resource usage:
 Common:
  GLOBAL:11 CONSTANT[4]:8
 Function scores:
  REG:138 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:576 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

METADATA = """
	v_mfma_f32_32x32x8_bf16 a[0:15], v[2:3], v[4:5], a[0:15]
	.amdhsa_next_free_vgpr 512
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     64
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 512
    .kernarg_segment_size: 48
    .max_flat_workgroup_size: 256
    .name:           scores
    .private_segment_fixed_size: 24
    .sgpr_count:     81
    .sgpr_spill_count: 3
    .uses_dynamic_stack: false
    .vgpr_count:     212
    .vgpr_spill_count: 6
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
	.end_amdgpu_metadata
"""


def test_nvidia() -> None:
    resources = nvidia_resources(USAGE.format(stack=16), reserved_bytes=1024, launched_bytes=49152)
    assert resources == Resources(registers=138, scalar_registers=None, shared_bytes=49152, spill_bytes=16)
    assert nvidia_resources(USAGE.format(stack=0), reserved_bytes=0, launched_bytes=0).shared_bytes == 1024


def test_amd() -> None:
    resources = amd_resources(METADATA, launched_bytes=24576)
    assert resources == Resources(registers=212, scalar_registers=81, shared_bytes=24576 + 512, spill_bytes=24)
