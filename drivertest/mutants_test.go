package drivertest

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// A mutant is the reference with one defect. The cases that proves names must
// fail on it, those that also names may, and no others. "*" stands for any: most
// cases stand on what is broken.
type mutant struct {
	defect string
	leases bool
	proves string
	also   string
}

var mutants = []mutant{
	{"re-entrant on one backend", true, "P01_exclusive_excludes_same_backend", "P01_S12_one_holder_at_any_time P14_token_order_is_holding_order P18_S28_release_wakes_waiter_of_same_backend P23_reader_excludes_writer P23_upgradeable_exists_once P23_writer_excludes_reader"},
	{"exclusion within a backend only", false, "P01_exclusive_excludes_other_backend P01_lockers_exclude_each_other P17_name_means_the_same_to_all_backends P01_processes_exclude_each_other P01_processes_lose_no_update P01_S12_lockers_take_turns", "*"},
	{"racy", true, "P01_S12_one_holder_at_any_time P01_S12_lockers_take_turns P23_permits_stay_within_their_limit", "*"},
	{"nil error for contention", true, "P02_nil_error_comes_with_a_hold", "*"},
	{"grant beside an error", true, "P02_error_comes_without_a_hold", ""},
	{"contention is some error", false, "P03_S04_contention_is_ErrHeld P03_S04_locker_contention_is_ErrNotAcquired P03_S04_locker_tells_why_its_context_ended P04_S08_locker_timeout_ends_in_time", "*"},
	{"contention is some error after a wait", true, "P03_S04_wait_over_is_ErrHeld P03_S04_locker_contention_is_ErrNotAcquired", "P03_crossed_waits_end_and_keep_what_is_held P04_S08_locker_timeout_ends_in_time P22_all_or_nothing"},
	{"failure is ErrHeld", true, "P03_S04_failure_is_not_ErrHeld", "P07_S01_locker_lost_answer_leaves_nothing"},
	{"closed is ErrHeld", true, "P03_S04_closed_is_not_ErrHeld", ""},
	{"crossed waits are some error", false, "P03_crossed_waits_end_and_keep_what_is_held", ""},
	{"a failed release breaks the backend", false, "P10_S13_failed_release_can_be_repeated", ""},
	{"a failed release counts as done", true, "P10_S13_failed_release_can_be_repeated", ""},
	{"a released name is spoilt", true, "P10_S13_resource_can_be_had_again", "*"},
	{"a thousand locks are too many", true, "P20_thousand_held_at_once", "P17_S36_a_thousand_names_are_distinct"},
	{"works on when closed", true, "P25_acquire_after_close_fails", ""},
	{"closing frees everything", true, "P25_close_leaves_others_alone", ""},
	{"closing keeps the connection", false, "P15_S14_closing_ends_sessions", ""},
	{"secrets in errors", true, "P26_errors_keep_secrets", "*"},
	{"waits though Wait is zero", true, "P04_wait_zero_answers_at_once", "*"},
	{"Queue is always refused", true, "P04_queue_alone_refuses_nobody", "*"},
	{"waits below a millisecond last for ever", false, "P04_S08_wait_of_a_microsecond_ends_in_time", "P07_S07_failed_tries_cost_nothing"},
	{"waits are rounded up to seconds", false, "P04_S08_wait_of_400ms_ends_in_time P04_S08_wait_of_a_millisecond_ends_in_time", "P04_S08_wait_of_a_microsecond_ends_in_time P07_S07_failed_tries_cost_nothing"},
	{"waits last twice as long", false, "P04_S08_wait_of_1900ms_ends_in_time", ""},
	{"waits below a second are refused", true, "P04_S08_wait_of_400ms_is_not_none", "P03_crossed_waits_end_and_keep_what_is_held P03_S04_locker_contention_is_ErrNotAcquired P03_S04_wait_over_is_ErrHeld P04_S08_locker_timeout_ends_in_time P22_all_or_nothing"},
	{"gives up by itself after a second", false, "P04_S08_wait_of_1900ms_is_no_second", ""},
	{"Forever is an overflow", false, "P04_S08_forever_is_a_wait", "P03_S04_locker_tells_why_its_context_ended P07_S06_cancelled_wait_is_granted_nothing P07_S06_locker_cancelled_wait_leaves_nothing P08_S02_cancelled_wait_returns_soon P18_S33_locker_cancelled_waiter_swallows_nothing P20_S30_many_waiters_cost_little P25_close_releases_and_wakes"},
	{"waiters of the same backend sleep on", true, "P18_S28_release_wakes_waiter_of_same_backend", "P01_S12_one_holder_at_any_time P14_token_order_is_holding_order P23_S28_last_reader_wakes_writer P23_upgrade_never_lets_go"},
	{"waiters sleep on", false, "P18_S28_release_wakes_waiter_of_other_backend P23_S28_last_reader_wakes_writer P23_S28_permit_wakes_waiter P18_locker_serves_in_order P18_S33_locker_cancelled_waiter_swallows_nothing", "P01_S12_lockers_take_turns P01_S12_one_holder_at_any_time P04_S08_forever_is_a_wait P14_locker_tokens_grow P14_token_order_is_holding_order P18_S28_release_wakes_waiter_of_same_backend P18_S33_cancelled_waiter_swallows_nothing P23_S28_writer_wakes_all_readers P23_permits_stay_within_their_limit P23_upgrade_never_lets_go"},
	{"cancelled waiter swallows the wake-up", false, "P18_S33_cancelled_waiter_swallows_nothing", "P18_S33_locker_cancelled_waiter_swallows_nothing"},
	{"queue counts those who gave up", false, "P18_S33_queue_forgets_who_gave_up", ""},
	{"done context is ignored", true, "P05_done_context_fails_when_free", "P05_passed_deadline_fails_when_free P07_S10_cancel_at_any_point_leaves_nothing"},
	{"passed deadline is ignored", true, "P05_passed_deadline_fails_when_free", ""},
	{"done context leaves a grant", true, "P05_done_context_leaves_nothing", ""},
	{"cancel doesn't end a wait", false, "P08_S02_cancelled_wait_returns_soon", "P07_S06_cancelled_wait_is_granted_nothing P07_S10_cancel_at_any_point_leaves_nothing P08_S02_deadline_ends_a_wait P18_S33_cancelled_waiter_swallows_nothing P18_S33_queue_forgets_who_gave_up"},
	{"deadline doesn't end a wait", true, "P08_S02_deadline_ends_a_wait", ""},
	{"cancelled wait is granted later", false, "P07_S06_cancelled_wait_is_granted_nothing P07_S06_locker_cancelled_wait_leaves_nothing", "P07_S10_cancel_at_any_point_leaves_nothing P18_S33_cancelled_waiter_swallows_nothing P18_S33_queue_forgets_who_gave_up"},
	{"ended wait is granted later", false, "P07_S06_ended_wait_is_granted_nothing", "P07_S07_failed_tries_cost_nothing P22_all_or_nothing"},
	{"lost answer is kept", true, "P07_S10_cancel_at_any_point_leaves_nothing P07_S01_lost_answer_leaves_nothing P07_S01_locker_lost_answer_leaves_nothing", ""},
	{"failed tries leave something behind", true, "P07_S07_failed_tries_cost_nothing", ""},
	{"failed tries leave a goroutine", true, "P07_S07_failed_tries_cost_nothing", "*"},
	{"context ends the holding", false, "P06_S09_cancel_after_grant_ends_nothing P06_S09_deadline_after_grant_ends_nothing P06_S09_locker_context_ends_no_holding", "*"},
	{"release frees later", true, "P09_released_is_free_at_once P22_all_or_nothing", "*"},
	{"releases do nothing", false, "P09_released_is_free_at_once P16_S17_dropped_lock_is_reported_and_freed P21_do_releases_however_it_ends P22_all_or_nothing P23_writer_is_not_starved P25_close_releases_and_wakes", "*"},
	{"release frees all of the session", false, "P09_release_frees_only_its_resource", "P15_permit_of_the_dead_comes_back P22_all_or_nothing P23_S12_reader_leaves_the_other_readers P23_S15_permit_comes_back_once P23_S15_reader_leaves_once P23_permits_stay_within_their_limit P23_writer_is_not_starved"},
	{"the second release fails", true, "P09_S15_release_twice_is_nil", "P10_lost_answer_to_release_can_be_repeated"},
	{"the second release is by name", true, "P09_S11_second_release_spares_next_holder", ""},
	{"release after loss is nil", true, "P09_release_after_loss_is_ErrLost P09_S11_release_after_expiry_is_ErrLost P09_S11_locker_release_of_the_lost_is_ErrLost", ""},
	{"release after loss is by name", false, "P09_S11_release_after_loss_spares_next_holder", ""},
	{"release after expiry is by name", true, "P09_S11_release_after_expiry_spares_next_holder", "P09_S11_locker_release_of_the_lost_is_ErrLost P09_S11_release_after_loss_spares_next_holder"},
	{"a lost connection is used on", false, "P10_S32_backend_works_on_after_loss P10_S32_backend_survives_a_restart", "P14_token_grows_over_loss"},
	{"restart frees silently", true, "P11_S21_restart_keeps_or_reports", ""},
	{"renewals come after the lease", true, "P12_lease_makes_sense", "P12_locker_keeps_its_lease P12_renewed_lease_stays"},
	{"the session is never looked at", false, "P12_lease_makes_sense", "P13_S21_locker_announces_the_loss P21_do_ends_with_the_lock"},
	{"sessions can't be compared", true, "P13_session_is_comparable", "*"},
	{"a hold is the session of all", false, "P13_session_that_is_a_hold_is_no_others", ""},
	{"renewals always fail", true, "P12_renew_is_nil_while_held", "P11_S11_renew_after_loss_spares_next_holder P11_S21_loss_is_reported P11_S22_renew_of_what_another_has_is_ErrLost P11_lost_stays_lost P11_renew_after_expiry_is_ErrLost P12_locker_keeps_its_lease P12_renewal_that_got_no_answer_is_not_a_loss P12_renewed_lease_stays P13_session_is_what_ends_together"},
	{"loss is reported from the start", false, "P13_no_loss_is_reported_while_held", "*"},
	{"one session takes the others along", true, "P13_session_is_what_ends_together", ""},
	{"each grant pretends a session of its own", false, "P13_session_is_what_ends_together", ""},
	{"renewals never fail", false, "P11_S21_loss_is_reported P11_S22_renew_of_what_another_has_is_ErrLost P13_S21_locker_announces_the_loss P21_do_ends_with_the_lock", "P11_S21_restart_keeps_or_reports P11_lost_stays_lost"},
	{"renewals never fail", true, "P11_renew_after_expiry_is_ErrLost", "P11_S21_loss_is_reported P11_S22_renew_of_what_another_has_is_ErrLost P11_lost_stays_lost P12_locker_keeps_its_lease P12_renewed_lease_stays P13_S21_locker_announces_the_loss P21_do_ends_with_the_lock"},
	{"renewal brings back what was lost", true, "P11_lost_stays_lost", ""},
	{"renewal ends the next holder's session", false, "P11_S11_renew_after_loss_spares_next_holder", ""},
	{"renewal ends the next holder's session", true, "P11_S11_renew_after_expiry_spares_next_holder", "P11_S11_renew_after_loss_spares_next_holder"},
	{"Abandon does nothing", false, "P13_abandon_frees_what_hangs_on_it", ""},
	{"Abandon blocks", true, "P13_abandon_does_not_block", "P11_S23_loss_comes_before_the_next_grant P13_S21_locker_announces_the_loss P21_do_ends_with_the_lock"},
	{"renewal revives the released", true, "P12_S20_renew_after_release_brings_nothing_back", ""},
	{"renewals read, then write", true, "P12_S20_renew_beside_release_brings_nothing_back", ""},
	{"leases end early", true, "P11_lease_lasts_for_its_TTL P11_S23_loss_comes_before_the_next_grant", ""},
	{"leases end early and nobody is told", true, "P11_S23_stopped_holder_learns_first", "*"},
	{"leases never end", true, "P15_lease_of_the_dead_runs_out", "P09_S11_release_after_expiry_is_ErrLost P09_S11_release_after_expiry_spares_next_holder P11_S11_renew_after_expiry_spares_next_holder P11_S23_loss_comes_before_the_next_grant P11_lease_lasts_for_its_TTL P11_renew_after_expiry_is_ErrLost P11_renew_after_expiry_revives_nothing P14_token_grows_over_expiry P15_S14_closing_ends_sessions"},
	{"renewals renew nothing", true, "P12_renewed_lease_stays P12_locker_keeps_its_lease", ""},
	{"renewal revives the expired", true, "P11_renew_after_expiry_revives_nothing", "P11_S21_loss_is_reported P11_lost_stays_lost P12_S20_renew_after_release_brings_nothing_back"},
	{"Sent is missing", true, "P11_sent_is_when_the_request_went_out", ""},
	{"Sent lies ahead", true, "P11_sent_is_when_the_request_went_out", "P11_lease_lasts_for_its_TTL"},
	{"Sent lies before the call", true, "P11_sent_is_when_the_request_went_out", "*"},
	{"no token for permits", true, "P14_tokens_are_as_declared", "P14_token_grows_from_permit_to_permit"},
	{"token restarts after release", false, "P14_token_grows_over_releases", "P14_locker_tokens_grow P14_token_grows_from_permit_to_permit P14_token_grows_over_backends P14_token_grows_over_closed_backends P14_token_grows_over_loss P14_token_grows_over_restart P14_token_grows_over_shared_and_exclusive P14_token_grows_over_upgrade P14_token_grows_over_upgradeable_and_exclusive P14_token_order_is_holding_order P23_locker_upgrades"},
	{"tokens counted by backend", true, "P14_token_grows_over_backends P14_locker_tokens_grow P14_token_grows_over_processes", "P14_token_grows_from_permit_to_permit P14_token_grows_from_reader_to_reader P14_token_grows_over_closed_backends P14_token_grows_over_expiry P14_token_grows_over_loss P14_token_grows_over_restart P14_token_grows_over_shared_and_exclusive P14_token_grows_over_upgrade P14_token_grows_over_upgradeable_and_exclusive P14_token_order_is_holding_order P23_locker_upgrades"},
	{"closing loses the counter", false, "P14_token_grows_over_closed_backends", "P14_token_grows_over_restart"},
	{"readers have one token", true, "P14_token_grows_from_reader_to_reader", "P14_token_grows_over_shared_and_exclusive"},
	{"shared tokens are apart", true, "P14_token_grows_over_shared_and_exclusive", ""},
	{"upgradeable tokens are apart", true, "P14_token_grows_over_upgradeable_and_exclusive", "P14_token_grows_over_upgrade"},
	{"permits have one token", true, "P14_token_grows_from_permit_to_permit", ""},
	{"upgrade keeps the token", true, "P14_token_grows_over_upgrade P23_locker_upgrades", ""},
	{"token restarts after a loss", false, "P14_token_grows_over_loss", "P14_token_grows_over_closed_backends P14_token_grows_over_restart"},
	{"token restarts after a loss", true, "P14_token_grows_over_expiry", "P14_token_grows_over_loss"},
	{"token restarts with the store", true, "P14_token_grows_over_restart", ""},
	{"token is drawn before the grant", true, "P14_token_order_is_holding_order", "P14_locker_tokens_grow"},
	{"names in lower case", true, "P17_S35_letter_case_matters", "P17_S35_dots_matter P17_S35_normal_forms_matter P17_S35_separators_matter P17_random_names_are_distinct"},
	{"names are trimmed", true, "P17_S35_blanks_matter", "P17_S35_control_characters_matter P23_S36_permits_are_no_lock_of_another_name P17_random_names_are_distinct"},
	{"slashes become underscores", true, "P17_S35_separators_matter", "P23_S36_permits_are_no_lock_of_another_name P17_random_names_are_distinct"},
	{"trailing dots are cut", true, "P17_S35_dots_matter", "P17_random_names_are_distinct"},
	{"names end at NUL", true, "P17_S35_control_characters_matter", "P17_random_names_are_distinct"},
	{"quotes are dropped", true, "P17_S35_quotes_and_wildcards_matter", "P17_random_names_are_distinct"},
	{"three bytes a character", true, "P17_S35_emoji_matter", "P17_S35_long_names_of_wide_characters_differ P17_random_names_are_distinct"},
	{"names are normalised", true, "P17_S35_normal_forms_matter", "P17_random_names_are_distinct"},
	{"names of 255 bytes", true, "P17_S35_long_names_differ_at_their_end", "P17_S35_long_names_differ_at_their_start P17_S35_long_names_of_wide_characters_differ P17_random_names_are_distinct"},
	{"names of the last 255 bytes", true, "P17_S35_long_names_differ_at_their_start", "P17_S35_long_names_differ_at_their_end P17_S35_long_names_of_wide_characters_differ P17_random_names_are_distinct"},
	{"wide names are cut", true, "P17_S35_long_names_of_wide_characters_differ", "P17_random_names_are_distinct"},
	{"names hashed to 14 bits", true, "P17_S36_a_thousand_names_are_distinct", "*"},
	{"names are Latin-1", true, "P17_random_names_are_distinct", "P17_S35_emoji_matter"},
	{"names differ by backend", true, "P17_name_means_the_same_to_all_backends", "P17_random_names_are_distinct"},
	{"a missing mode is exclusive", true, "P24_missing_mode_is_ErrUnsupported", ""},
	{"a missing mode is some error", true, "P24_missing_mode_is_ErrUnsupported", ""},
	{"reader excludes reader of another backend", true, "P23_readers_share_over_backends P23_locker_readers_and_writers", "Inspect_shows_all_readers P14_token_grows_from_reader_to_reader P23_S16_cancelled_upgrade_keeps_the_holding P23_S16_failed_upgrade_keeps_the_holding P23_S28_last_reader_wakes_writer P23_failed_upgrade_lets_readers_in_again P23_locker_upgrades P23_upgrade_never_lets_go P23_upgrade_that_must_wait_is_ErrHeld P23_upgrade_waits_for_readers P23_upgradeable_stands_beside_readers"},
	{"reader excludes reader of the same backend", true, "P23_readers_share_within_a_backend", "P14_token_grows_from_reader_to_reader P23_S12_reader_leaves_the_other_readers P23_S15_reader_leaves_once P23_S28_writer_wakes_all_readers P23_failed_upgrade_lets_readers_in_again P23_upgradeable_stands_beside_readers"},
	{"readers don't exclude writers", true, "P23_reader_excludes_writer", "P23_S12_reader_leaves_the_other_readers P23_S15_reader_leaves_once P23_S28_last_reader_wakes_writer P23_locker_readers_and_writers"},
	{"writers don't exclude readers", true, "P23_writer_excludes_reader P23_locker_readers_and_writers", "P23_S16_failed_upgrade_keeps_the_holding P23_S28_writer_wakes_all_readers P23_locker_upgrades P23_upgrade_waits_for_readers P23_upgraded_excludes_reader"},
	{"first reader to leave frees all", true, "P23_S12_reader_leaves_the_other_readers", "P23_S15_reader_leaves_once P23_S16_cancelled_upgrade_keeps_the_holding P23_S16_failed_upgrade_keeps_the_holding P23_S28_last_reader_wakes_writer P23_locker_readers_and_writers P23_locker_upgrades P23_upgrade_never_lets_go P23_upgrade_waits_for_readers P23_writer_is_not_starved"},
	{"a reader leaves with each release", true, "P23_S15_reader_leaves_once", ""},
	{"one of the waiting readers is woken", true, "P23_S28_writer_wakes_all_readers", "P23_upgrade_never_lets_go"},
	{"one permit too few", true, "P23_all_permits_can_be_had", "P14_token_grows_from_permit_to_permit P15_permit_of_the_dead_comes_back P23_S15_permit_comes_back_once P23_S28_permit_wakes_waiter P23_S36_permits_are_no_lock_of_another_name P23_locker_semaphore_keeps_its_limit P23_no_more_permits_than_there_are P23_released_permit_can_be_had"},
	{"one permit too many", true, "P23_no_more_permits_than_there_are P23_locker_semaphore_keeps_its_limit P23_permits_stay_within_their_limit", "P15_permit_of_the_dead_comes_back P23_S15_permit_comes_back_once P23_S28_permit_wakes_waiter P23_one_permit_is_a_lock"},
	{"permits counted by backend", true, "P23_no_more_permits_than_there_are", "P23_S15_permit_comes_back_once P23_S28_permit_wakes_waiter P23_locker_semaphore_keeps_its_limit P23_one_permit_is_a_lock P23_permits_stay_within_their_limit"},
	{"permits start at two", true, "P23_one_permit_is_a_lock", ""},
	{"released permits are lost", true, "P23_released_permit_can_be_had", "P14_token_grows_from_permit_to_permit P15_permit_of_the_dead_comes_back P23_S15_permit_comes_back_once P23_S28_permit_wakes_waiter P23_locker_semaphore_keeps_its_limit P23_one_permit_is_a_lock P23_permits_stay_within_their_limit"},
	{"a permit comes back with each release", true, "P23_S15_permit_comes_back_once", ""},
	{"semaphores share the locks' names", true, "P23_semaphore_is_not_the_lock", "Inspect_keeps_permits_and_locks_apart P23_locker_semaphore_keeps_its_limit"},
	{"permits are locks of derived names", true, "P23_S36_permits_are_no_lock_of_another_name", ""},
	{"permits of the dead are lost for good", false, "P15_permit_of_the_dead_comes_back", ""},
	{"upgradeable excludes readers", true, "P23_upgradeable_stands_beside_readers", "P23_S16_cancelled_upgrade_keeps_the_holding P23_S16_failed_upgrade_keeps_the_holding P23_failed_upgrade_lets_readers_in_again P23_locker_upgrades P23_upgrade_never_lets_go P23_upgrade_that_must_wait_is_ErrHeld P23_upgrade_waits_for_readers"},
	{"many upgradeable at once", true, "P23_upgradeable_exists_once", "P23_S16_cancelled_upgrade_keeps_the_holding P23_S16_failed_upgrade_keeps_the_holding P23_locker_upgrades"},
	{"upgradeable doesn't exclude writers", true, "P23_upgradeable_excludes_writer", "P23_S16_cancelled_upgrade_keeps_the_holding"},
	{"writers don't exclude upgradeable", true, "P23_writer_excludes_upgradeable", ""},
	{"upgraded holdings let readers in", true, "P23_upgraded_excludes_reader P23_locker_upgrades", "P23_S16_failed_upgrade_keeps_the_holding P23_upgrade_waits_for_readers"},
	{"upgraded holdings leave a part behind", true, "P23_upgraded_is_released_wholly", "P14_token_grows_over_upgrade P23_upgrade_never_lets_go"},
	{"upgrade doesn't wait for readers", true, "P23_upgrade_waits_for_readers P23_locker_upgrades", "P23_S16_cancelled_upgrade_keeps_the_holding P23_failed_upgrade_lets_readers_in_again P23_upgrade_never_lets_go P23_upgrade_that_must_wait_is_ErrHeld"},
	{"upgrade that must wait is some error", true, "P23_upgrade_that_must_wait_is_ErrHeld", "P23_locker_upgrades"},
	{"failed upgrade drops the holding", true, "P23_S16_failed_upgrade_keeps_the_holding", "P23_locker_upgrades P23_upgrade_that_must_wait_is_ErrHeld"},
	{"cancelled upgrade drops the holding", true, "P23_S16_cancelled_upgrade_keeps_the_holding", ""},
	{"failed upgrade keeps readers out", true, "P23_failed_upgrade_lets_readers_in_again", ""},
	{"upgrade lets go and takes again", true, "P23_upgrade_never_lets_go", ""},
	{"Undo does nothing", true, "P07_S01_undo_frees_what_was_granted", "P07_S01_locker_lost_answer_leaves_nothing P07_S01_lost_answer_leaves_nothing P07_S01_undo_by_another_backend P07_S10_cancel_at_any_point_leaves_nothing"},
	{"Undo of one's own only", true, "P07_S01_undo_by_another_backend", ""},
	{"Undo of nothing fails", true, "P07_undo_of_nothing_is_nil P07_undo_twice_is_nil", "P05_done_context_leaves_nothing P07_S06_cancelled_wait_is_granted_nothing P07_S07_failed_tries_cost_nothing P07_S10_cancel_at_any_point_leaves_nothing P07_undo_spares_others P07_undo_spares_the_next_holder P18_S33_cancelled_waiter_swallows_nothing P18_S33_locker_cancelled_waiter_swallows_nothing P18_S33_queue_forgets_who_gave_up"},
	{"Undo by name", true, "P07_undo_spares_others P07_undo_spares_the_next_holder", "P07_S06_cancelled_wait_is_granted_nothing P07_S06_locker_cancelled_wait_leaves_nothing P07_S07_failed_tries_cost_nothing P07_S10_cancel_at_any_point_leaves_nothing P18_S33_cancelled_waiter_swallows_nothing P18_S33_locker_cancelled_waiter_swallows_nothing P18_S33_queue_forgets_who_gave_up P20_S30_many_waiters_cost_little"},
	{"never gives up by itself", false, "P08_S02_answers_within_what_it_says", ""},
	{"settled before it is", false, "P08_S02_interruptible_returns_and_settles", "P07_S01_lost_answer_leaves_nothing P07_S01_locker_lost_answer_leaves_nothing P07_S10_cancel_at_any_point_leaves_nothing"},
	{"hangs while the store is mute", false, "P08_S02_acquire_returns_when_the_store_is_mute P08_S02_answers_within_what_it_says P08_S02_interruptible_returns_and_settles P10_lost_answer_to_release_can_be_repeated", "P07_S01_lost_answer_leaves_nothing"},
	{"a mute store is ErrHeld", false, "P08_S02_acquire_returns_when_the_store_is_mute P08_S02_answers_within_what_it_says P08_S02_interruptible_returns_and_settles P08_S02_locker_returns_when_the_store_is_mute", "P07_S01_locker_lost_answer_leaves_nothing P07_S01_lost_answer_leaves_nothing"},
	{"no answer to a renewal is a loss", true, "P12_renewal_that_got_no_answer_is_not_a_loss", ""},
	{"holders are shown as oneself", true, "Inspect_shows_who_holds", ""},
	{"somebody always holds", true, "Inspect_shows_nobody_when_free", "Inspect_keeps_permits_and_locks_apart"},
	{"readers are shown as writers", true, "Inspect_shows_all_readers", ""},
	{"nobody is ever shown", true, "Inspect_shows_who_holds Inspect_shows_all_readers", "Inspect_keeps_permits_and_locks_apart"},
	{"holders of permits are shown as those of the lock", true, "Inspect_keeps_permits_and_locks_apart", ""},
	{"waiting takes connections", true, "P20_S30_many_waiters_cost_little", ""},
	{"names are never forgotten", false, "P20_S34_names_are_forgotten", "P17_random_names_are_distinct"},
	{"the dead keep what they had", false, "P15_killed_holder_is_replaced", ""},
	{"waiters outlive their process", false, "P07_killed_waiter_leaves_nothing", ""},
	{"a silent connection is cut", false, "P11_S23_stopped_holder_keeps_it", ""},
}

// Each mutant fails in the cases named for its defect, and in no others.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name(), func(t *testing.T) {
			t.Parallel()
			var proving, others []clause
			for _, c := range faked() {
				if m.mustFail(c.name) {
					proving = append(proving, c)
				} else {
					others = append(others, c)
				}
			}
			m.mustFailIn(t, proving)
			if raceDetector || m.also == "*" {
				return
			}
			for _, failed := range failures(run(t, others, m.defect, m.leases, false)) {
				if !slices.Contains(strings.Fields(m.also), failed) {
					t.Errorf("fails in %s, which is about something else", failed)
				}
			}
		})
	}
}

// The same for what needs other processes. Those wait most of the time: none waits
// for another.
func TestMutantsInRealTime(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for _, m := range mutants {
		all.Go(func() {
			m.mustFailIn(t, slices.DeleteFunc(unfaked(false), func(c clause) bool { return !m.mustFail(c.name) }))
		})
	}
	all.Wait()
}

// The same for what needs the garbage collector, and nobody beside it.
func TestMutantsAlone(t *testing.T) {
	for _, m := range mutants {
		m.mustFailIn(t, slices.DeleteFunc(unfaked(true), func(c clause) bool { return !m.mustFail(c.name) }))
	}
}

func (m mutant) name() string {
	if m.leases {
		return m.defect + " (leases)"
	}
	return m.defect + " (connections)"
}

func (m mutant) mustFail(name string) bool { return slices.Contains(strings.Fields(m.proves), name) }

// mustFailIn gives a defect several chances: whether two get in each other's way
// may depend on the machine.
func (m mutant) mustFailIn(t *testing.T, cases []clause) {
	t.Helper()
	for range 5 {
		if len(cases) == 0 {
			return
		}
		outcomes := run(t, cases, m.defect, m.leases, true)
		cases = slices.DeleteFunc(cases, func(c clause) bool { return outcomes[c.name].failed })
	}
	for _, c := range cases {
		t.Errorf("%s: doesn't fail in %s", m.name(), c.name)
	}
}

// Every case fails on some mutant.
func TestEveryCaseHasAMutant(t *testing.T) {
	known := make(map[string]bool)
	for _, c := range cases() {
		if known[c.name] {
			t.Errorf("two cases are named %s", c.name)
		}
		known[c.name] = true
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.mustFail(c.name) }) {
			t.Errorf("no mutant proves %s", c.name)
		}
	}
	for _, m := range mutants {
		for name := range strings.FieldsSeq(m.proves + " " + m.also) {
			if name != "*" && !known[name] {
				t.Errorf("mutant %q names %s, which is no case", m.defect, name)
			}
		}
	}
}
