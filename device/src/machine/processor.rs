//! The processors of the machine: their names, instruction sets, memory nodes and clocks.

use std::fs;

#[cfg(target_arch = "x86_64")]
use crate::matmul::bf16::Instructions;

/// Returns the name of the processor as the kernel reports it.
pub fn processor_name() -> Option<String> {
    parse_name(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Returns the instruction sets of this processor that matter for Zillion, the widest first.
pub fn instruction_sets() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let sets = [
        ("amx-bf16", Instructions::detect().is_some_and(|set| set.name() == "amx-bf16")),
        ("avx512-bf16", is_x86_feature_detected!("avx512bf16")),
        ("avx512-vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512", is_x86_feature_detected!("avx512f")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
    ];
    #[cfg(target_arch = "aarch64")]
    let sets = [("neon", true), ("sve", std::arch::is_aarch64_feature_detected!("sve"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let sets: [(&str, bool); 0] = [];
    sets.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// Returns the number of memory nodes. If there are several nodes, the memory of other nodes is
/// slower for a processor.
pub fn numa_nodes() -> Option<usize> {
    parse_list(fs::read_to_string("/sys/devices/system/node/online").ok()?.trim())
}

/// Returns the frequency governor of processor 0, or `None` if there is none, as in most virtual
/// machines.
pub fn governor() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

/// Returns the clock source of the kernel.
pub fn clock_source() -> Option<String> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn parse_name(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns how many numbers a list such as "0-3,8" contains.
fn parse_list(text: &str) -> Option<usize> {
    let mut count = 0usize;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_parsed() {
        assert_eq!(parse_list("0"), Some(1));
        assert_eq!(parse_list("0-3,8,10-11"), Some(7));
        assert_eq!((parse_list(""), parse_list("3-1"), parse_list("a")), (None, None, None));
        let text = "processor\t: 0\nmodel name\t: Some: CPU @ 2 GHz\nflags\t: fpu\n";
        assert_eq!(parse_name(text).as_deref(), Some("Some: CPU @ 2 GHz"));
        assert_eq!(parse_name("processor: 0"), None);
    }
}
