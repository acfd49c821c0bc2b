//! Changes of a session's options, and the credentials that its client brings.

use super::Sessions;
use crate::{
    Result, TouchedOptions,
    mailbox::{ActorMessage, OptionsChange},
    settings::check_provider_supported,
};
use ash_model::{SessionOptions, SessionRowId};
use ash_sandbox::EgressPolicy;
use ash_store::SessionRow;

impl Sessions {
    /// Checks new options of a session: refuses what creating a session would refuse.
    pub async fn accepts_options(
        &self,
        session: &SessionRow,
        options: &SessionOptions,
        touched: TouchedOptions,
    ) -> Result<()> {
        let SessionRow { tenant, agent, version, runtime, slug, .. } = session;
        match self.services.store.version(tenant, agent, *version).await? {
            Some(version) => {
                self.services.accepts(&version, options, (slug.is_some(), touched))?;
                if touched.service {
                    self.services.settings.supported(version.runtime).await?;
                }
                Ok(())
            }
            // Without its version the session cannot start again, so only this check remains.
            None => check_provider_supported(*runtime, options),
        }
    }

    /// Sets the client's own credentials for the next message or the next start.
    pub fn set_client_credentials(&self, no: SessionRowId, way: EgressPolicy) {
        self.services.client_credentials.set(no, way);
    }

    /// Sends a live agent the options that it can change while it runs, and waits until it has accepted them.
    pub async fn change_options(&self, no: SessionRowId, wanted: OptionsChange) -> Result<()> {
        self.open_for_work()?;
        self.ask(no, |reply| ActorMessage::Options { wanted, reply }).await
    }
}
