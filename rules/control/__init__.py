"""Operations that steer a training: their calls in a policy, and the arithmetic of the learning rate."""
