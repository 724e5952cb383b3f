//! The requests of clients about the set of models: the index, load and unload.
//!
//! The registry is read outside of the network's threads, for one client at a time: the
//! registry may be slow, and any number of requests must not occupy more than one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::access::Actor;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::repository::Indexed;

/// The interval between two checks of a model that is being loaded, and of whether the server is
/// stopping.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The longest time that a request of a client waits for the registry, and for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Domain {
    /// Lists the models for a client, as [`Domain::index`] does.
    ///
    /// # Errors
    /// Returns an error if [`Domain::index`] returns one.
    pub async fn index_for_client(self: &Arc<Self>) -> Result<Vec<Indexed>> {
        self.run_control(|domain| domain.index()).await
    }

    /// Loads a model for a client, and returns when the model can answer. A model of the
    /// configuration follows the version that the configuration names, and any other model
    /// follows the pointer `stable`. A model that cannot be loaded is removed again.
    ///
    /// # Errors
    /// Returns [`ServeError::NoControl`] if clients may not choose models, and another
    /// error if the registry does not have the model or the model cannot be loaded.
    pub async fn load_for_client(self: &Arc<Self>, actor: &Actor, model: &str) -> Result<()> {
        let load =
            |domain: Arc<Self>, name: String| async move { domain.load_and_wait(&name).await };
        self.act_for_client(actor, "load", model, load).await
    }

    async fn load_and_wait(self: &Arc<Self>, model: &str) -> Result<()> {
        let name = model.to_owned();
        let (host, is_new) = self.run_control(move |domain| domain.load_known(&name)).await?;
        loop {
            let open = host.open();
            if open.current.is_some() {
                return Ok(());
            }
            self.check_stopping()?;
            if let Some(problem) = &open.problem {
                let refused =
                    ServeError::NotReady(format!("model `{model}` could not be loaded: {problem}"));
                self.forget_if_new(&host, is_new).await?;
                return Err(refused);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Unloads a model for a client.
    ///
    /// # Errors
    /// Returns [`ServeError::NoControl`] if clients may not choose models, and
    /// [`ServeError::UnknownModel`] if the server does not have the model.
    pub async fn unload_for_client(self: &Arc<Self>, actor: &Actor, model: &str) -> Result<()> {
        let unload = |domain: Arc<Self>, name: String| async move {
            domain.run_control(move |domain| domain.unload(&name)).await
        };
        self.act_for_client(actor, "unload", model, unload).await
    }

    /// Does a control action, and writes to the audit log before it that it was asked for, and
    /// after it what came of it. The action is a task of its own: it goes on and is written down
    /// when the client leaves.
    async fn act_for_client<F: Future<Output = Result<()>> + Send>(
        self: &Arc<Self>,
        actor: &Actor,
        action: &'static str,
        model: &str,
        act: impl FnOnce(Arc<Self>, String) -> F + Send + 'static,
    ) -> Result<()> {
        if !self.has_model_control() {
            self.record_no_control(actor, action, model);
            let model = model.chars().take(100).collect();
            return Err(ServeError::NoControl { what: action, model });
        }
        let (domain, actor, model) = (self.clone(), actor.clone(), model.to_owned());
        let acting = tokio::spawn(async move {
            domain.audit(&actor, action, &model, "asked", String::new()).await?;
            let done = act(domain.clone(), model.clone()).await;
            let (outcome, detail) = match &done {
                Ok(()) => ("done", String::new()),
                Err(error) => ("failed", error.to_string()),
            };
            domain.audit(&actor, action, &model, outcome, detail).await?;
            done
        });
        acting.await.map_err(|error| {
            ServeError::Internal(format!("the action ended without a result: {error}"))
        })?
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

    fn check_stopping(&self) -> Result<()> {
        if self.is_draining() {
            return Err(ServeError::NotReady(
                "the server is stopping; send the request to another server".to_owned(),
            ));
        }
        Ok(())
    }

    /// Waits until the server is stopping, or `time` has passed.
    async fn give_up(&self, time: Duration) -> ServeError {
        let began = Instant::now();
        while began.elapsed() < time {
            if let Err(stopping) = self.check_stopping() {
                return stopping;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        let text = format!("the registry did not answer within {time:?}; try again later");
        ServeError::NotReady(text)
    }

    /// Runs work that reads the registry. A client waits for its turn and for the work no longer
    /// than [`LONGEST_WAIT`] each, and not at all once the server is stopping.
    async fn run_control<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let gone = |what: String| ServeError::Internal(what);
        self.check_stopping()?;
        let turn = tokio::select! {
            turn = self.control_turn() => turn.map_err(|e| gone(e.to_string()))?,
            error = self.give_up(LONGEST_WAIT) => return Err(error),
        };
        self.begin_control(LONGEST_WAIT);
        let domain = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&domain);
            drop(turn);
            done
        });
        tokio::select! {
            done = done => done.map_err(|e| {
                gone(format!(
                    "the request to the registry ended without a result ({e}); send it again"))
            })?,
            error = self.give_up(LONGEST_WAIT.saturating_mul(2)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
