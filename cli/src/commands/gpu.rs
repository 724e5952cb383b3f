//! `zillion gpu`: checks a GPU, and compiles its kernels.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use zillion_console::{print_line, print_result};
use zillion_device::gpu::check::Size;
use zillion_device::gpu::compile::{Compiled, compile_all};
use zillion_device::gpu::report::{self, CheckLine, CheckReport};
use zillion_device::gpu::{Info, open};

use crate::args::{GpuCheckArgs, GpuCommand, GpuCompileArgs};

pub(crate) fn run(command: &GpuCommand) -> Result<ExitCode> {
    match command {
        GpuCommand::Check(args) => check(args),
        GpuCommand::Compile(args) => compile(args).map(|()| ExitCode::SUCCESS),
    }
}

fn check(args: &GpuCheckArgs) -> Result<ExitCode> {
    let gpu = open(&args.device, args.kernels.as_deref())?;
    if !args.json {
        print_device(gpu.info());
    }
    let has = |name: &str, texts: &[String]| texts.iter().any(|text| name.contains(text));
    let is_wanted =
        |name: &str| (args.only.is_empty() || has(name, &args.only)) && !has(name, &args.skip);
    let size = if args.small { Size::Small } else { Size::Full };
    let report = report::check(gpu.as_ref(), size, is_wanted, |line| {
        if !args.json {
            print_check(line);
        }
    });
    print_result(args.json, &report, print_summary)?;
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_device(info: &Info) {
    print_line(&format!("{} ({}, driver {})", info.name, info.arch, info.driver));
    for library in &info.libraries {
        let unknown = || "not found".to_owned();
        let version = library.version.clone().unwrap_or_default();
        let path = library.path.clone().unwrap_or_else(unknown);
        print_line(&format!("{:18}  {version}  {path}", library.name));
    }
    let hashes: Vec<String> =
        info.kernels.iter().map(|(unit, hash)| format!("{unit} {hash}")).collect();
    print_line(&format!(
        "kernels: {}; {} compiled, {:.1} s",
        hashes.join(", "),
        info.compiled_units,
        info.kernel_seconds
    ));
}

fn print_check(line: &CheckLine) {
    let CheckLine { name, compared, seconds, error } = line;
    match error {
        Some(error) => print_line(&format!("!!  {name}: {error}")),
        None if *compared > 0 => {
            print_line(&format!("ok  {name}: {compared} values with equal bits, {seconds:.2} s"));
        }
        None => print_line(&format!("ok  {name}, {seconds:.2} s")),
    }
}

fn print_summary(report: &CheckReport) {
    let launches: u64 = report.launches.iter().map(|(_, count)| count).sum();
    print_line(&format!(
        "{} checks, {} failed; {launches} launches of {} kernels",
        report.checks.len(),
        report.failed,
        report.launches.len()
    ));
}

/// The output of the compiler for one unit of kernels.
#[derive(Serialize)]
struct UnitReport {
    unit: &'static str,
    bytes: usize,
    kernels: Vec<KernelReport>,
}

#[derive(Serialize)]
struct KernelReport {
    name: String,
    registers: u32,
    spill_bytes: u32,
}

fn compile(args: &GpuCompileArgs) -> Result<()> {
    let compiled = compile_all(&args.arch, &args.out)?;
    let units: Vec<UnitReport> = compiled.into_iter().map(report_of).collect();
    print_result(args.json, &units, |units| {
        for unit in units {
            print_line(&format!("{}: {} bytes", unit.unit, unit.bytes));
            for KernelReport { name, registers, spill_bytes } in &unit.kernels {
                print_line(&format!(
                    "  {name}: {registers} registers, {spill_bytes} bytes spilled"
                ));
            }
        }
    })
}

fn report_of(compiled: Compiled) -> UnitReport {
    let kernels = compiled.kernels.into_iter().map(|kernel| KernelReport {
        name: kernel.name,
        registers: kernel.registers,
        spill_bytes: kernel.spill_bytes,
    });
    UnitReport { unit: compiled.unit, bytes: compiled.cubin.len(), kernels: kernels.collect() }
}
