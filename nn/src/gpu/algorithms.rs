//! The algorithms of the library's products, which a run keeps so that another one has its bits.

use std::collections::BTreeMap;

use zillion_device::gpu::{Algorithm, Gpu, Stream};

use crate::error::Result;
use crate::gpu::bind::Bound;
use crate::gpu::executor::GpuExecutor;
use crate::gpu::library::LibraryProducts;

impl LibraryProducts {
    /// Chooses the algorithms of the products in a list of operations. Those that are neither kept
    /// nor chosen already are timed, which waits.
    pub(super) fn prepare(&self, gpu: &dyn Gpu, stream: Stream, bound: &Bound) -> Result<()> {
        for product in bound.products() {
            if gpu.algorithm(product).is_none()
                && let Some(algorithm) = self.kept.get(&product.shape())
            {
                gpu.set_algorithm(product, *algorithm)?;
            }
            gpu.prepare(stream, product)?;
        }
        Ok(())
    }
}

impl GpuExecutor {
    /// Returns whether the library of the GPU computes the products of layers.
    pub fn has_library(&self) -> bool {
        self.library.is_some()
    }

    /// Sets the algorithms of the library's products that an earlier run on the same model of GPU
    /// and version of the library has kept, before the first run. Returns the texts of those that
    /// the library does not propose any more; they are chosen anew.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn keep_algorithms(&mut self, kept: &BTreeMap<String, Algorithm>) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        let Some(library) = &self.library else { return Ok(refused) };
        let mut all = library.kept.clone();
        all.extend(kept.iter().map(|(shape, algorithm)| (shape.clone(), *algorithm)));
        for product in self.bind_without_batch()?.products() {
            let shape = product.shape();
            let Some(algorithm) = all.get(&shape) else { continue };
            if let Err(error) = self.gpu.set_algorithm(product, *algorithm) {
                refused.push(error.to_string());
                all.remove(&shape);
            }
        }
        if let Some(library) = &mut self.library {
            library.kept = all;
        }
        Ok(refused)
    }

    /// Returns the algorithms of the library's products by [`Product::shape`]: those of the last
    /// run, and those that were kept before.
    ///
    /// [`Product::shape`]: zillion_device::gpu::Product::shape
    pub fn algorithms(&self) -> BTreeMap<String, Algorithm> {
        let mut all = self.library.as_ref().map_or_else(BTreeMap::new, |own| own.kept.clone());
        for product in
            self.loaded.iter().chain(&self.spare).flat_map(|loaded| loaded.bound.products())
        {
            if let Some(algorithm) = self.gpu.algorithm(product) {
                all.insert(product.shape(), algorithm);
            }
        }
        all
    }
}
