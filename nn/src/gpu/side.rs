//! The stream beside the main one, for work on which the next launches do not depend.

use zillion_device::gpu::{Event, Gpu, Stream};

use crate::error::Result;

/// A stream beside the main one, with the events that order both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    main: Stream,
    /// The stream of the work beside.
    pub(crate) stream: Stream,
    fork: Event,
    join: Event,
}

impl Side {
    /// Creates the stream and its events.
    pub(crate) fn new(gpu: &dyn Gpu, main: Stream) -> Result<Self> {
        let stream = gpu.create_stream()?;
        Ok(Self { main, stream, fork: gpu.create_event(false)?, join: gpu.create_event(false)? })
    }

    /// Frees the stream and its events, after what is on the stream.
    pub(crate) fn free(&self, gpu: &dyn Gpu) -> Result<()> {
        gpu.synchronize(self.stream)?;
        gpu.free_event(self.fork)?;
        gpu.free_event(self.join)?;
        Ok(gpu.free_stream(self.stream)?)
    }

    /// Lets the stream wait for what is on the main one.
    pub(crate) fn fork(&self, gpu: &dyn Gpu) -> Result<()> {
        gpu.record(self.fork, self.main)?;
        Ok(gpu.wait(self.stream, self.fork)?)
    }

    /// Lets the main stream wait for what is on this one.
    pub(crate) fn join(&self, gpu: &dyn Gpu) -> Result<()> {
        gpu.record(self.join, self.stream)?;
        Ok(gpu.wait(self.main, self.join)?)
    }
}
