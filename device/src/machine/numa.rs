//! The memory nodes (NUMA) of the machine: their number, and the node of a thread.

use std::sync::OnceLock;

use super::numa_nodes;

/// Returns whether the machine has more than one memory node.
pub(crate) fn has_many_nodes() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| numa_nodes().is_some_and(|nodes| nodes > 1))
}

/// Returns the memory node of the processor that runs this thread, or 0 if there is only one node
/// or the system does not report the node.
pub(crate) fn current_node() -> usize {
    #[cfg(target_os = "linux")]
    if has_many_nodes() {
        let mut node: libc::c_uint = 0;
        // SAFETY: the call writes one unsigned integer to a valid address, and nothing to a null
        // pointer.
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
