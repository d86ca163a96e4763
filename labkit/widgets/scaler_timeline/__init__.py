"""What would another scaler have done? A recorded run, replayed under any knobs."""
