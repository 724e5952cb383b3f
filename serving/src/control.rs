//! The requests of clients about the set of models: the index, load and unload.
//!
//! The registry is asked off the network's thread, for one client at a time: it may be far away,
//! and a crowd of requests must not cost more threads than one.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::repository::Indexed;

/// The time between two looks at a model that is being loaded.
const LOOK: Duration = Duration::from_millis(5);

impl Domain {
    /// Lists the models for a client, as [`Domain::index`] does.
    ///
    /// # Errors
    /// The errors of [`Domain::index`].
    pub async fn index_for_client(self: &Arc<Self>) -> Result<Vec<Indexed>> {
        self.run_control(|domain| domain.index()).await
    }

    /// Loads a model for a client, and returns when the model can answer. A model of the
    /// configuration follows its usual version, and another model the pointer `stable`. A model
    /// that cannot be loaded is not kept.
    ///
    /// # Errors
    /// [`ServeError::NoControl`] if clients may not choose models, a model that the registry does
    /// not have, or a model that cannot be loaded.
    pub async fn load_for_client(self: &Arc<Self>, model: &str) -> Result<()> {
        self.allow("load", model)?;
        let name = model.to_owned();
        let (host, is_new) = self.run_control(move |domain| domain.load_known(&name)).await?;
        loop {
            let open = host.open();
            if open.current.is_some() {
                return Ok(());
            }
            if let Some(problem) = &open.problem {
                let refused =
                    ServeError::NotReady(format!("model `{model}` could not be loaded: {problem}"));
                self.forget_if_new(&host, is_new).await?;
                return Err(refused);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Unloads a model for a client.
    ///
    /// # Errors
    /// [`ServeError::NoControl`] if clients may not choose models, or [`ServeError::UnknownModel`].
    pub async fn unload_for_client(self: &Arc<Self>, model: &str) -> Result<()> {
        self.allow("unload", model)?;
        let name = model.to_owned();
        self.run_control(move |domain| domain.unload(&name)).await
    }

    fn allow(&self, what: &'static str, model: &str) -> Result<()> {
        if self.has_model_control() {
            return Ok(());
        }
        Err(ServeError::NoControl { what, model: model.chars().take(100).collect() })
    }

    async fn forget_if_new(self: &Arc<Self>, host: &Arc<Host>, is_new: bool) -> Result<()> {
        if !is_new {
            return Ok(());
        }
        let name = host.name().to_owned();
        match self.run_control(move |domain| domain.unload(&name)).await {
            // Another client has unloaded the model already.
            Err(ServeError::UnknownModel { .. }) => Ok(()),
            other => other,
        }
    }

    async fn run_control<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let gone = |what: String| ServeError::Internal(what);
        let turn = self.control_turn().await.map_err(|e| gone(e.to_string()))?;
        let domain = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&domain);
            drop(turn);
            done
        });
        done.await.map_err(|e| gone(format!("the request to the registry was abandoned: {e}")))?
    }
}
