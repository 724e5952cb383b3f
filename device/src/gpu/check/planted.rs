//! Mistakes that are planted in the kernels: each must be found by a check on the emulator.
//!
//! A mistake is a replacement in the source of one unit. The unit is compiled with it as a library
//! of its own, which runs the check under several schedules. The list is what the checks and the
//! emulator are worth: a kernel of a new kind gets a mistake of its own here.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::process::Command;

use super::tests::{Direct, Launcher};
use super::{CHECKS, Size};
use crate::gpu::Gpu;

/// A mistake in a unit.
struct Plant {
    mistake: &'static str,
    unit: &'static str,
    /// The text that is replaced, and its replacement.
    replaced: [&'static str; 2],
    /// The check that finds the mistake.
    check: &'static str,
    /// A part of the report.
    report: &'static str,
}

const PLANTS: &[Plant] = &[
    Plant {
        mistake: "a barrier is missing",
        unit: "product",
        replaced: [
            "      wait_copies<STAGES - 2>();\n      __syncthreads();\n",
            "      wait_copies<STAGES - 2>();\n",
        ],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "a slice is read before its copies are complete",
        unit: "product",
        replaced: ["wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();"],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "the inner dimension is padded with zeros",
        unit: "product",
        replaced: [
            "NO_UNROLL for (u32 step = 0; step < depth; step++)",
            "NO_UNROLL for (u32 step = 0; step < DEPTH; step++)",
        ],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "stages of shared memory overlap",
        unit: "product",
        replaced: ["copy_next(stages + i * STAGE);", "copy_next(stages + i * (STAGE - BN));"],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "the tail of a tile is one too long",
        unit: "product",
        replaced: [
            "if (col + j < job.n) to[col + j] = v[j];",
            "if (col + j <= job.n) to[col + j] = v[j];",
        ],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "the chains of a product have another length",
        unit: "product",
        replaced: ["const u32 CHAIN = 512;", "const u32 CHAIN = 1024;"],
        check: "product",
        report: "differ",
    },
    Plant {
        mistake: "half a warp names the lanes of the other half",
        unit: "product",
        replaced: ["half_warp_mask()", "0xffffu"],
        check: "row_dot",
        report: "whose mask leaves it out",
    },
    Plant {
        mistake: "half a warp waits for lanes that have gone",
        unit: "reduce",
        replaced: ["sum_of_half_warp(half_warp_mask(), sum)", "sum_of_half_warp(ALL_LANES, sum)"],
        check: "sum_columns",
        report: "never come",
    },
    Plant {
        mistake: "a barrier stands where only some threads come",
        unit: "reduce",
        replaced: [
            "    __syncthreads();\n    const u32 n =",
            "    if (y < 4) __syncthreads();\n    const u32 n =",
        ],
        check: "sum_rows",
        report: "barrier",
    },
    Plant {
        mistake: "one buffer serves two stages",
        unit: "reduce",
        replaced: ["at += STAGE_ROWS, side ^= 1", "at += STAGE_ROWS"],
        check: "sum_rows",
        report: "differ",
    },
    Plant {
        mistake: "a range is added as a tree without barriers",
        unit: "reduce",
        replaced: [
            "half /= 2) {\n    __syncthreads();\n    if (y < half) sums",
            "half /= 2) {\n    if (y < half) sums",
        ],
        check: "sum_ranges",
        report: "differ",
    },
    Plant {
        mistake: "the occurrences of a medium row are added in another order",
        unit: "rows",
        replaced: [
            "const u32 from = j * Q + quad.q;",
            "const u32 from = (SIDE - 1 - j) * Q + quad.q;",
        ],
        check: "row_update",
        report: "differ",
    },
    Plant {
        mistake: "a state is written before others have read it",
        unit: "rows",
        replaced: [
            "const float before = number == 0 ? s.first_state : live ? state[0] : 0.0f;",
            "const float before = live ? state[0] : 0.0f;\n      if (change && quad.q == 0) state[0] = before + squares / (float)dim;",
        ],
        check: "row_update",
        report: "differ",
    },
    Plant {
        mistake: "padding behind the last row keeps what was there",
        unit: "loss",
        replaced: ["const u64 all = (u64)p.rows.most * cols;", "const u64 all = (u64)rows * cols;"],
        check: "assemble",
        report: "differ",
    },
    Plant {
        mistake: "the last value of a list is left out",
        unit: "segment",
        replaced: [
            "sum = sum + x[(u64)v * p.x.stride];\n      out",
            "sum = v + 1 < end || end - begin < 3 ? sum + x[(u64)v * p.x.stride] : sum;\n      out",
        ],
        check: "segment",
        report: "differ",
    },
    Plant {
        mistake: "a sum of squares has other partial sums",
        unit: "optimizer",
        replaced: [
            "for (u32 i = 0; i < SUMS; i++) all = all + sums[i];",
            "for (u32 i = SUMS; i > 0; i--) all = all + sums[i - 1];",
        ],
        check: "dense_update",
        report: "instead of",
    },
    Plant {
        mistake: "shared memory is too small",
        unit: "interaction",
        replaced: [
            "vectors[i / dim * (dim + 1) + i % dim] = x[i];",
            "vectors[i / dim * (dim + 2) + i % dim] = x[i];",
        ],
        check: "interaction",
        report: "behind the end",
    },
    Plant {
        mistake: "a weight is rounded with the random bits of its neighbour",
        unit: "table",
        replaced: ["random_of_unit(seed, i)", "random_of_unit(seed, i + 1)"],
        check: "table_rules",
        report: "differ",
    },
    Plant {
        mistake: "a narrow row reads the gradient of a full one",
        unit: "table",
        replaced: ["sums + rule.begin + rule.shift", "sums + rule.begin"],
        check: "table_rules",
        report: "differ",
    },
    Plant {
        mistake: "a row without a gradient has no regulariser",
        unit: "table",
        replaced: ["touched || (rule.flags & RULE_L2_WHOLE) ? rule.l2", "touched ? rule.l2"],
        check: "table_rules",
        report: "differ",
    },
    Plant {
        mistake: "a seed of a row is that of its slot",
        unit: "table",
        replaced: ["const u64 key = read_only(p.keys + u);", "const u64 key = p.slots[u];"],
        check: "initial_rows",
        report: "differ",
    },
    Plant {
        mistake: "a lane reads the place of a field from the other half of its warp",
        unit: "gather",
        replaced: ["(threadIdx.x & 16) + ((begin + i) & 15)", "((begin + i) & 15)"],
        check: "field_lookup",
        report: "outside of its mask",
    },
    Plant {
        mistake: "a tile belongs to the weight before",
        unit: "product",
        replaced: ["first_tile <= blockIdx.x) number++;", "first_tile < blockIdx.x) number++;"],
        check: "copy_weights",
        report: "differ",
    },
    Plant {
        mistake: "the rows of a copy of a weight end in its neighbours instead of zeros",
        unit: "product",
        replaced: [
            "row < copy.rows && col < copy.cols ? copy.weight",
            "row < copy.rows ? copy.weight",
        ],
        check: "copy_weights",
        report: "instead of",
    },
    Plant {
        mistake: "the rows of an operand that the batch does not have are old ones",
        unit: "chain",
        replaced: ["row < rows && col < p.x.cols ? lesser", "col < p.x.cols ? lesser"],
        check: "padded_rows",
        report: "instead of",
    },
    Plant {
        mistake: "the rows behind the batch are not cleared",
        unit: "chain",
        replaced: ["all = gaps + (u64)(p.total - rows) * p.width;", "all = gaps;"],
        check: "clear_padding",
        report: "differ",
    },
    Plant {
        mistake: "a row that grows gets a weight too many",
        unit: "table",
        replaced: [
            "const NarrowPart part = p.weights[number];\n      for (u32 i = lane; i < part.n;",
            "const NarrowPart part = p.weights[number];\n      for (u32 i = lane; i <= part.n;",
        ],
        check: "grow_rows",
        report: "differ",
    },
    Plant {
        mistake: "the sum so far is not scaled when the maximum grows",
        unit: "in_batch",
        replaced: ["sum = sum * exp_of(most - best) + part;", "sum = sum + part;"],
        check: "in_batch",
        report: "differ",
    },
    Plant {
        mistake: "a row's own item is left out",
        unit: "in_batch",
        replaced: ["k != at && read_only(p.items + k)", "read_only(p.items + k)"],
        check: "in_batch",
        report: "differ",
    },
];

/// Compiles a unit with a mistake and returns the function that launches its kernels.
fn compile(plant: &Plant, folder: &Path) -> Launcher {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let copy = folder.join("kernels");
    std::fs::create_dir_all(copy.join("emulator")).unwrap();
    for part in [Path::new(""), Path::new("emulator")] {
        for entry in std::fs::read_dir(sources.join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), copy.join(part).join(entry.file_name())).unwrap();
            }
        }
    }
    let file = copy.join(format!("{}.cu", plant.unit));
    let source = std::fs::read_to_string(&file).unwrap();
    let [from, to] = plant.replaced;
    assert!(source.contains(from), "{}: the source has changed", plant.mistake);
    std::fs::write(&file, source.replace(from, to)).unwrap();
    let library = folder.join("planted.so");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(compiler)
        .args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fPIC",
            "-shared",
        ])
        .arg(format!("-DZN_UNIT=\"../{}.cu\"", plant.unit))
        .arg(copy.join("emulator/emulator.cpp"))
        .arg("-o")
        .arg(&library)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library was just compiled from our sources; it has no initialisers but the
    // registrations of its kernels. It stays open until the process ends.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            panic!("{:?}", CStr::from_ptr(libc::dlerror()));
        }
        let launch = libc::dlsym(library, c"zn_emulated_launch".as_ptr());
        assert!(!launch.is_null());
        std::mem::transmute::<*mut libc::c_void, Launcher>(launch)
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for plant in PLANTS {
        let folder = tempfile::tempdir().unwrap();
        let launcher = compile(plant, folder.path());
        let check = CHECKS.iter().find(|check| check.name == plant.check).unwrap();
        let errors: Vec<String> = (1..=4)
            .filter_map(|seed| {
                let device = Direct::new(seed, Some((plant.unit, launcher)));
                (check.run)(&device as &dyn Gpu, Size::Small).err().map(|error| error.to_string())
            })
            .collect();
        let Some(first) = errors.first() else { panic!("not found: {}", plant.mistake) };
        assert!(
            errors.iter().any(|error| error.contains(plant.report)),
            "{}: {first}",
            plant.mistake
        );
    }
}
