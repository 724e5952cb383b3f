//! Memory nodes: which one a thread runs on, and where its pages shall lie.

use std::sync::OnceLock;

use super::numa_nodes;

/// Whether the machine has more than one memory node.
pub(crate) fn has_many_nodes() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| numa_nodes().is_some_and(|nodes| nodes > 1))
}

/// The memory node of the processor that runs this thread; 0 where there is one, or nobody tells.
pub(crate) fn current_node() -> usize {
    #[cfg(target_os = "linux")]
    if has_many_nodes() {
        let mut node: libc::c_uint = 0;
        // SAFETY: the call writes one unsigned integer to an address that is one, and nothing to null.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_getcpu,
                std::ptr::null_mut::<libc::c_uint>(),
                &raw mut node,
                std::ptr::null_mut::<libc::c_void>(),
            )
        };
        if answer == 0 {
            return node as usize;
        }
    }
    0
}
