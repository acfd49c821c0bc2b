//! A tree that was found and is not trusted is captured before another tree takes its place.

use super::{EffectOutcome, SessionActor};
use crate::{Result, blocking, capture::CheckpointCapture};
use ash_model::{CaptureConsistency, Fact, SavedCheckpoint};
use ash_snapshot::CapturedSnapshot;

impl SessionActor {
    /// Captures what is on disk and cannot be trusted, before another tree takes its place.
    pub(super) fn start_salvage(&mut self) {
        let (services, live, tenant) =
            (self.ctx.services.clone(), self.ctx.live.clone(), self.ctx.session.tenant.clone());
        let workspace = self.ctx.workspace.clone();
        self.begin_effect(async move {
            let _exclusive = workspace.exclusive().await;
            // Another session was faster; it may have made another tree, or deleted the workspace.
            if workspace.sandbox().is_some() || !live.has_leftovers(workspace.tree().is_some()) {
                return EffectOutcome::Salvaged(Ok(None));
            }
            let salvaged = blocking(move || {
                ash_sandbox::reap(&live.run())?;
                live.salvage(&*services.repo(&tenant)?, &services.uids)
            });
            EffectOutcome::Salvaged(salvaged.await)
        });
    }

    pub(super) async fn on_salvaged(&mut self, salvaged: Result<Option<CapturedSnapshot>>) -> Result<()> {
        match salvaged {
            Ok(Some(taken)) if self.is_known(&taken).await? => {}
            Ok(Some(taken)) => {
                let number = self.next_number();
                let shot = CheckpointCapture {
                    number,
                    snapshot: taken,
                    consistency: CaptureConsistency::Live,
                    concurrent_turns: Vec::new(),
                };
                let saved = SavedCheckpoint { salvage: true, ..shot.describe() };
                let row = self.checkpoint_row(&saved, &shot.snapshot, 1);
                self.commit(vec![Fact::Saved(saved)], Vec::new(), None, Some(row)).await?;
                self.ctx.workspace.set_newest(number);
            }
            Ok(None) => {}
            Err(error) => {
                self.give_up_end(&error);
                self.give_up_rewinding(&error).await?;
                self.answer_failed_writers(&error);
                return if self.machine.log.status == ash_model::SessionStatus::Starting {
                    self.on_start_failed(error).await
                } else {
                    Ok(())
                };
            }
        }
        let live = self.ctx.live.clone();
        blocking(move || live.forget_old()).await
    }
}
