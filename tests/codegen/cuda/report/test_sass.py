"""The search for instructions, on samples of disassemblies."""

import pytest

from flexspec.codegen.cuda.report.sass import amd_instructions, has_tensor_float, nvidia_instructions

SASS = """
	code for sm_90a
		Function : LDG_E_128_HMMA
	.headerflags	@"EF_CUDA_SM90"
        /*00d0*/                   LDG.E.128 R12, desc[UR22][R2.64] ;               /* 0x0000001602027981 */
                                                                                    /* 0x000ea2000c1e1d00 */
        /*00e0*/              @!P0 LDG.E.LTC128B.64 R16, desc[UR22][R2.64+0x800] ;
        /*00f0*/             @!UP1 LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR22][R2.64], P2 ;
        /*0100*/                   LDGSTS.E [R7], desc[UR22][R2.64], P2 ;
        /*0110*/                   LDS.128 R8, [R7] ;
        /*0120*/                   STG.E.128 desc[UR22][R2.64], R8 ;
        /*0130*/               @P3 LDG.E.EF.128.CONSTANT R16, desc[UR22][R2.64] ;
"""


def test_wide_loads_are_those_from_global_memory() -> None:
    instructions = nvidia_instructions(SASS)
    assert (instructions.wide_loads, instructions.matrix, instructions.matrix_names) == (3, 0, ())


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R16, R4 ;", "HMMA"),
        ("        /*0010*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], !UPT ;", "HGMMA"),
        ("        /*0010*/                   QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], !UPT ;", "QGMMA"),
        ("        /*09e0*/                   UTCHMMA gdesc[UR4], gdesc[UR12], tmem[UR11], tmem[UR28], idesc[UR29] ;", "UTCHMMA"),
        ("        /*09e0*/              @!P1 UTCQMMA gdesc[UR4], gdesc[UR12], tmem[UR11], tmem[UR28], idesc[UR29] ;", "UTCQMMA"),
        ("        /*12340*/                  IMMA.16832.S8.S8 R4, R8.ROW, R16.COL, R4 ;", "IMMA"),
    ],
)
def test_matrix_units_of_nvidia(line: str, name: str) -> None:
    instructions = nvidia_instructions(f"{SASS}{line}\n{line}\n")
    assert (instructions.matrix, instructions.matrix_names) == (2, (name,))


def test_amd() -> None:
    instructions = amd_instructions("""
scores:
	global_load_dwordx4 v[2:5], v[8:9], off offset:-4096
	buffer_load_dwordx4 v[2:5], v8, s[4:7], 0 offen
	global_load_dwordx2 v[2:3], v[8:9], off
	global_store_dwordx4 v[2:3], v[8:11], off
	ds_read_b128 v[2:5], v8
	; global_load_dwordx4 in a comment
	v_mfma_f32_32x32x8_bf16 a[0:15], v[2:3], v[4:5], a[0:15]
	v_mfma_f32_32x32x8_bf16 a[0:15], v[2:3], v[4:5], a[0:15]
""")
    assert (instructions.wide_loads, instructions.matrix, instructions.matrix_names) == (2, 2, ("v_mfma_f32_32x32x8_bf16",))


@pytest.mark.parametrize(
    ("assembly", "expected"),
    [
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}", True),
        ("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32", True),
        ("tcgen05.mma.cta_group::1.kind::tf32 [%r1]", True),
        ("cvt.rna.tf32.f32 %r1, %f1", True),
        ("	v_mfma_f32_32x32x4_xf32 a[0:15]", True),
        ("fma.rn.f32 %f1, %f2, %f3, %f4", False),
        ("	v_mfma_f32_32x32x2_f32 a[0:15]", False),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", False),
    ],
)
def test_tensor_float(assembly: str, expected: bool) -> None:
    assert has_tensor_float(assembly) is expected
