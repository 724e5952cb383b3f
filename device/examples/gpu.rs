//! Checks and measures a GPU without the rest of the program. It builds in a minute, so it is for
//! work on kernels; `zillion gpu check` and `zillion bench gpu` are for everybody else.
//!
//! ```sh
//! cargo run --release -p zillion-device --example gpu -- check small
//! cargo run --release -p zillion-device --example gpu -- compile sm_90 FOLDER
//! ```

#![expect(clippy::print_stdout, reason = "printing is what this program does")]

use std::path::Path;
use std::process::ExitCode;

use zillion_device::gpu::check::Size;
use zillion_device::gpu::cuda::{Cuda, CudaOptions, libraries};
use zillion_device::gpu::{Gpu, GpuError, compile, conformance, rates, report};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["libraries"] => list_libraries(),
        ["compile", arch, folder] => compile_all(arch, Path::new(folder)),
        ["check", size, names @ ..] => check(size, names),
        ["fail"] => open().and_then(|gpu| conformance::check_failure(&gpu)).map(|()| true),
        ["rates", parts @ ..] => measure(parts),
        _ => {
            eprintln!(
                "libraries | compile ARCH FOLDER | check small|full [no] [NAME ...] | fail | rates [PART ...]"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open() -> Result<Cuda, GpuError> {
    let gpu = Cuda::open(&CudaOptions::default())?;
    println!("{}", json(gpu.info()));
    Ok(gpu)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("a report is JSON")
}

fn list_libraries() -> Result<bool, GpuError> {
    let all = libraries();
    all.iter().for_each(|library| println!("{}", json(library)));
    Ok(all.iter().all(|library| library.problem.is_none()))
}

fn compile_all(arch: &str, folder: &Path) -> Result<bool, GpuError> {
    let mut spills = 0;
    for unit in compile::compile_all(arch, folder)? {
        println!("{}: {} bytes", unit.unit, unit.cubin.len());
        for kernel in unit.kernels {
            println!(
                "  {}: {} registers, {} bytes spilled",
                kernel.name, kernel.registers, kernel.spill_bytes
            );
            spills += kernel.spill_bytes;
        }
    }
    Ok(spills == 0)
}

/// Runs the checks whose names contain one of `names`, or with `no TEXT ...` all others.
fn check(size: &str, names: &[&str]) -> Result<bool, GpuError> {
    let has = |name: &str, parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_wanted = |name: &str| match names {
        [] => true,
        ["no", parts @ ..] => !has(name, parts),
        parts => has(name, parts),
    };
    let gpu = open()?;
    let size = if size == "full" { Size::Full } else { Size::Small };
    let report = report::check(&gpu, size, is_wanted, |line| println!("{}", json(line)));
    println!("{}", json(&report.launches));
    println!("{}", json(&report.counters));
    println!("{} checks, {} failed", report.checks.len(), report.failed);
    Ok(report.failed == 0)
}

fn measure(parts: &[&str]) -> Result<bool, GpuError> {
    let gpu = open()?;
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let print = |all: &[rates::Rate]| all.iter().for_each(|rate| println!("{}", json(rate)));
    if parts.iter().any(|part| !part.starts_with("step")) || parts.is_empty() {
        let floors = rates::measure_floors(&gpu)?;
        print(&floors);
        if wants("rows") {
            print(&rates::measure_rows(&gpu, 10_000_000, floors[0].rate)?);
        }
    }
    if wants("step") {
        rates::measure_step(&gpu, 10_000_000, |step| println!("{}", json(step)))?;
    }
    if wants("step-parts") {
        rates::measure_step_parts(&gpu, 10_000_000, |rate| println!("{}", json(rate)))?;
    }
    if wants("exact") {
        print(&rates::measure_exact_products(&gpu)?);
    }
    if wants("library") {
        print(&rates::measure_library_products(&gpu)?);
    }
    println!("{}", json(&gpu.counters()));
    Ok(true)
}
