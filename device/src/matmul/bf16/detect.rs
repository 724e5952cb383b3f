//! The detection of the instructions that multiply bf16.

use std::fmt;

/// The instructions that multiply bf16 on this machine. A value exists only if the processor has
/// the instructions and the operating system lets this process use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions(Set);

/// A set of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// The tiles of AMX with the instruction `tdpbf16ps`.
    Amx,
    /// The 512-bit registers with the instruction `vdpbf16ps`.
    Avx512,
}

impl Instructions {
    /// Returns the fastest set of instructions of this machine, or `None` if it has none.
    pub fn detect() -> Option<Self> {
        Self::list().next()
    }

    /// Returns all sets of instructions of this machine, the fastest first.
    pub fn list() -> impl Iterator<Item = Self> {
        let has = |set: &Set| match set {
            Set::Amx => has_avx512() && has_amx(),
            Set::Avx512 => has_avx512(),
        };
        [Set::Amx, Set::Avx512].into_iter().filter(has).map(Self)
    }

    /// Returns the name of the set. Products with the same name have the same bits on all machines.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Amx => "amx-bf16",
            Set::Avx512 => "avx512-bf16",
        }
    }

    pub(super) fn set(self) -> Set {
        self.0
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns whether the processor has AVX512-BF16 and the parts of AVX-512 that packing uses.
pub(super) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::simd::{Level, level};
        level() == Level::Avx512 && is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns whether the processor has tiles of the expected size with products of bf16, and whether
/// the operating system lets this process use them.
fn has_amx() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};

        /// The flags of AMX-BF16 and AMX-TILE in EDX of leaf 7.
        const FLAGS: u32 = 1 << 22 | 1 << 24;
        /// The request of `arch_prctl` for the use of a part of the processor's state.
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        /// The number of the part that contains the tiles.
        const XFEATURE_XTILEDATA: libc::c_long = 18;

        let highest = __cpuid(0).eax;
        if highest < 0x1d || __cpuid_count(7, 0).edx & FLAGS != FLAGS {
            return false;
        }
        // The first palette: eight tiles of sixteen rows of 64 bytes.
        let palette = __cpuid_count(0x1d, 1);
        if palette.ebx != (8 << 16 | 64) || palette.ecx & 0xffff != 16 {
            return false;
        }
        // SAFETY: the call has two numbers as arguments and touches no memory of the process. It
        // changes only what the threads of this process may use from now on. A repeated call has
        // the same answer.
        let answer =
            unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
        answer == 0
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}
