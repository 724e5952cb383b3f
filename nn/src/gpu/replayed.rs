//! Work that is enqueued operation by operation at first, and replayed as a graph from the second
//! time on. A replay takes the host less time.

use zillion_device::gpu::{Gpu, Graph, Stream};

use crate::error::Result;

/// The graph of some work. A graph belongs to a key: for another key, the work is recorded again.
#[derive(Debug, Default)]
pub(crate) struct Replayed<K> {
    has_run: bool,
    graph: Option<(K, Graph)>,
}

/// A record of a graph, which ends even if what enqueues its operations panics. Other threads
/// wait for its end.
struct Record<'a> {
    gpu: &'a dyn Gpu,
    stream: Stream,
    is_open: bool,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let ended = self.gpu.end_capture(self.stream);
            let _ = ended.and_then(|graph| self.gpu.free_graph(graph));
        }
    }
}

impl<K: Copy + PartialEq> Replayed<K> {
    /// Enqueues the work, which `enqueue` puts on the stream.
    pub(crate) fn run(
        &mut self,
        gpu: &dyn Gpu,
        stream: Stream,
        key: K,
        enqueue: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if !self.has_run {
            self.has_run = true;
            return enqueue();
        }
        let graph = match self.graph {
            Some((known, graph)) if known == key => graph,
            _ => {
                self.forget(gpu, stream)?;
                gpu.begin_capture(stream)?;
                let mut record = Record { gpu, stream, is_open: true };
                let enqueued = enqueue();
                record.is_open = false;
                let ended = gpu.end_capture(stream);
                self.graph = ended.as_ref().ok().map(|&graph| (key, graph));
                // The record often cannot end after an operation that failed, whose error says why.
                if let Err(error) = enqueued {
                    let _ = self.forget(gpu, stream);
                    return Err(error);
                }
                ended?
            }
        };
        Ok(gpu.replay(stream, graph)?)
    }

    /// Frees the graph, if there is one, after its replays have run.
    pub(crate) fn forget(&mut self, gpu: &dyn Gpu, stream: Stream) -> Result<()> {
        let Some((_, graph)) = self.graph.take() else { return Ok(()) };
        gpu.synchronize(stream)?;
        Ok(gpu.free_graph(graph)?)
    }
}
